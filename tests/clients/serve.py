"""The gateway that the clients talk to: `toolwire serve` on a free port, with two models for each script beside this file.

`scripts/NAME.script` becomes the models NAME-native, which makes tool calls of its own, and NAME-emulated, which only writes text.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from toolwire.__main__ import main

SCRIPTS = Path(__file__).parent / "scripts"


def models() -> dict[str, dict[str, str]]:
    return {
        f"{script.stem}-{tools}": {"backend": "scripted", "script": script.read_text("utf-8"), "tools": tools}
        for script in sorted(SCRIPTS.glob("*.script"))
        for tools in ("native", "emulated")
    }


if __name__ == "__main__":
    for name in [name for name in os.environ if name.startswith(("TOOLWIRE_", "PROXY_", "XDG_")) or name == "PORT"]:
        del os.environ[name]
    os.environ["TOOLWIRE_MODELS"] = json.dumps(models())
    sys.exit(main(["serve", "--port", "0"]))
