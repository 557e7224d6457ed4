"""The gateway of the clients: `toolwire serve` on a free port, with the models of the tests.

`scripts/NAME.script` becomes the models NAME-native, which makes native tool calls, and NAME-emulated, which
only writes text. With a prefix, such as tools_NAME-native, the calls have the form that certain clients need:
see FORMS. `golden.py` has the scripts of golden_NAME-native and golden_NAME-emulated. The models of
`simple.py` read their history. `demo` is the demo model. `serve.py CODEX URL`, with the path of a Codex and
the address of such a gateway, instead serves the real Codex app-server as NAME-codex, with the other gateway
as its provider.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import simple
from golden import GOLDEN
from toolwire.cli.main import main

SCRIPTS = Path(__file__).parent / "scripts"

FORMS: dict[str, Callable[[str], str]] = {
    "": lambda script: script,
    "tools_": lambda script: re.sub(r"(?m)^call ", "call tools-", script),
    "strict_": lambda script: re.sub(
        r'(?m)^(call get_weather \{"city": *"\w+")\}', r'\1, "days": null}', script
    ),
}
"""How a script is changed for some clients.

`tools_`: their tools belong to a plugin of that name. `strict_`: they send every tool as strict, so that the
model must write null for an optional argument.
"""

MODELS_OF_CODEX = {
    "obsidian": "obsidian-native",
    "opencode": "opencode-native",
    "codex": "codex_twice-native",
    "claude_code": "claude_code-native",
}
MODELS_OF_CODEX |= {f"{form}weather": f"{form}weather-native" for form in FORMS}


def codex_models(program: str, url: str) -> dict[str, dict[str, Any]]:
    shared = {"backend": "codex", "bin": program, "provider": {"base_url": url}}
    return {f"{name}-codex": {**shared, "model": model} for name, model in MODELS_OF_CODEX.items()}


def models() -> dict[str, dict[str, str]]:
    scripts = {script.stem: script.read_text("utf-8") for script in sorted(SCRIPTS.glob("*.script"))}
    scripted = {
        f"{form}{name}": {"backend": "scripted", "script": change(script)}
        for form, change in FORMS.items()
        for name, script in scripts.items()
    }
    scripted |= {
        f"golden_{name}": {"backend": "scripted", "script": f"usage 25 15\n{golden.script}"}
        for name, golden in GOLDEN.items()
    }
    server = {"backend": "openai", "base_url": simple.start()}
    reading = {f"{form}{plan}": {**server, "model": plan} for form in FORMS for plan in simple.PLANS}
    both = {**scripted, **reading}.items()
    return {
        "demo": {"backend": "scripted"},
        **{
            f"{name}-{tools}": {**model, "tools": tools}
            for name, model in both
            for tools in ("native", "emulated")
        },
    }


if __name__ == "__main__":
    for name in [
        name for name in os.environ if name.startswith(("TOOLWIRE_", "PROXY_", "XDG_")) or name == "PORT"
    ]:
        del os.environ[name]
    os.environ["TOOLWIRE_MODELS"] = json.dumps(codex_models(*sys.argv[1:]) if sys.argv[1:] else models())
    sys.exit(main(["serve", "--port", "0"]))
