"""An MCP server that costs as little as possible: `python proxy_server.py NUMBER_OF_TOOLS`, over stdio."""

from __future__ import annotations

import json
import sys

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
ABOUT = "Returns its text. " * 5


def main() -> None:
    tools = [
        {"name": f"echo_{number}", "description": f"{ABOUT}{number}", "inputSchema": TEXT}
        for number in range(int(sys.argv[1]))
    ]
    results = {
        "initialize": {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "bench", "version": "1"},
        },
        "tools/list": {"tools": tools},
        "tools/call": {"content": [{"type": "text", "text": "done"}]},
    }
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" not in asked or "method" not in asked:
            continue
        answer = {"jsonrpc": "2.0", "id": asked["id"]}
        if asked["method"] in results:
            answer["result"] = results[asked["method"]]
        else:
            answer["error"] = {"code": -32601, "message": "Method not found"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
