"""Runs the scripted bridge as a process. `--ready` says how it reports that it is ready, or fails to."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path[:1] = [str(Path(__file__).resolve().parents[2])]  # an agent's process inherits no PYTHONPATH

from doubles.cursor_bridge import DEFAULT, VERSION, FakeCursorBridge  # noqa: E402


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m doubles.cursor_bridge", description="A scripted stand-in for Cursor's bridge."
    )
    for name in (
        "--workspace",
        "--state-root",
        "--tool-callback-url",
        "--tool-callback-auth-token",
        "--script",
        "--log",
        "--api-key",
    ):
        parser.add_argument(name, default="")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--models", default="auto,composer-2")
    parser.add_argument("--protocol", default="sdk.v1")
    parser.add_argument("--keepalive-s", type=float, default=15.0)
    parser.add_argument(
        "--ready",
        choices=("file", "inline", "noisy", "garbage", "schema", "never", "exit"),
        default="file",
        help="how it says that it is ready",
    )
    return parser.parse_args()


def _ready_lines(how: str, bridge: FakeCursorBridge, arguments: argparse.Namespace, folder: str) -> list[str]:
    file = Path(folder) / "auth-token"
    file.touch(mode=0o600)
    file.write_text(bridge.token)
    facts: dict[str, Any] = {
        "schemaVersion": 2 if how == "schema" else 1,
        "serverVersion": VERSION,
        "pid": os.getpid(),
    }
    facts.update(
        transport="tcp", protocol="connect", host="127.0.0.1", port=int(bridge.url.rpartition(":")[2])
    )
    facts.update(workspaceRef=arguments.workspace, stateRoot=arguments.state_root)
    facts.update(
        {"authToken": bridge.token} if how == "inline" else {"url": bridge.url, "authTokenFile": str(file)}
    )
    line = "cursor-sdk-bridge ready " + json.dumps(facts)
    noise = ["(node:1) Warning: something\x1b[31m red\x1b[0m", "x" * 100_000]
    return {
        "noisy": [*noise, line, *noise],
        "garbage": ["cursor-sdk-bridge ready {nonsense"],
        "never": ["still warming up"],
    }.get(how, [line])


async def _serve(arguments: argparse.Namespace) -> None:
    script = json.loads(Path(arguments.script).read_text("utf-8")) if arguments.script else DEFAULT
    bridge = FakeCursorBridge(
        *script,
        models=arguments.models.split(","),
        api_key=arguments.api_key,
        protocol=arguments.protocol,
        keepalive_s=arguments.keepalive_s,
        callback=(arguments.tool_callback_url, arguments.tool_callback_auth_token),
        log=arguments.log,
    )
    with tempfile.TemporaryDirectory(prefix="fake-cursor-bridge-") as folder:
        await bridge.start(arguments.host, arguments.port)
        for line in _ready_lines(arguments.ready, bridge, arguments, folder):
            print(line, file=sys.stderr, flush=True)
        await bridge.stopped.wait()
        await bridge.close()


def main() -> None:
    arguments = _arguments()
    if arguments.ready == "exit":
        sys.exit("no licence file was found")
    asyncio.run(_serve(arguments))


if __name__ == "__main__":
    main()
