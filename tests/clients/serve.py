"""The gateway that the clients talk to: `toolwire serve` on a free port, with two models for each script beside this file, and the demo model.

`scripts/NAME.script` becomes the models NAME-native, which makes tool calls of its own, and NAME-emulated, which only writes text.
`serve.py CODEX URL`, with the path of a Codex and the address of such a gateway, serves the real Codex app-server instead, as NAME-codex: that asks
the other gateway for its answers, as it would ask any provider.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from toolwire.__main__ import main

SCRIPTS = Path(__file__).parent / "scripts"

BEHIND_CODEX = {"weather": "weather-native", "obsidian": "obsidian-native", "opencode": "opencode-native", "codex": "codex_twice-native"}


def codex_models(program: str, url: str) -> dict[str, dict[str, Any]]:
    shared = {"backend": "codex", "bin": program, "provider": {"base_url": url}}
    return {f"{name}-codex": {**shared, "model": model} for name, model in BEHIND_CODEX.items()}


def models() -> dict[str, dict[str, str]]:
    scripted: dict[str, dict[str, str]] = {
        f"{script.stem}-{tools}": {"backend": "scripted", "script": script.read_text("utf-8"), "tools": tools}
        for script in sorted(SCRIPTS.glob("*.script"))
        for tools in ("native", "emulated")
    }
    return {"demo": {"backend": "scripted"}, **scripted}


if __name__ == "__main__":
    for name in [name for name in os.environ if name.startswith(("TOOLWIRE_", "PROXY_", "XDG_")) or name == "PORT"]:
        del os.environ[name]
    os.environ["TOOLWIRE_MODELS"] = json.dumps(codex_models(*sys.argv[1:]) if sys.argv[1:] else models())
    sys.exit(main(["serve", "--port", "0"]))
