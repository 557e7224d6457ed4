"""How an agent is started: profile × options → command, environment and files. Pure.

The operator's settings are kept, but for those that would give the agent tools of its own: Toolwire's come last.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolwire.backends.acp.options import AcpOptions
from toolwire.backends.acp.profiles import Profile
from toolwire.errors import ToolwireError

PASSED_ON = (
    "PATH LANG LC_ALL TZ SSL_CERT_FILE SSL_CERT_DIR NODE_EXTRA_CA_CERTS "
    "HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY http_proxy https_proxy all_proxy no_proxy"
).split()
"""What an agent gets to see of our environment."""
LOOPBACK = "127.0.0.1,localhost"


@dataclass(frozen=True, slots=True)
class Launch:
    """`secrets` are the values that must not stand in any message."""

    command: tuple[str, ...]
    env: Mapping[str, str]
    files: Mapping[str, str]
    secrets: frozenset[str]


def find(options: AcpOptions, profile: Profile) -> str:
    """The program's path, or a clear error."""
    word = os.path.expanduser(options.command[0])
    found = shutil.which(word, path=options.env.get("PATH"))
    if found is None:
        how = f" Install it with: {profile.install}" if profile.install else ""
        raise ToolwireError("backend_unavailable", f"{profile.title} is not installed: the command {word!r} was not found.{how}")
    return os.path.abspath(found)


def launch(options: AcpOptions, profile: Profile, program: str, home: str, tmp: str, environ: Mapping[str, str], tools: Sequence[str] = ()) -> Launch:
    """`home` and `tmp` are the agent's own folders; with a `HOME` of the operator's it lives there. `tools` are the client's, as they are listed."""
    env = {name: environ[name] for name in PASSED_ON if name in environ}
    env |= {"HOME": home, "TMPDIR": tmp, **{name: value.format(home=home) for name, value in profile.environment.items()}, **options.env}
    for name in ("NO_PROXY", "no_proxy"):  # the client's tools are on loopback
        env[name] = ",".join(filter(None, (env.get(name, ""), LOOPBACK)))
    command = [program, *options.command[1:], *profile.arguments]
    overlay: dict[str, Any] = {}
    how, words = profile.model_by
    if options.model and how == "arguments":
        command += [word.format(model=options.model) for word in words]
    elif options.model and how == "environment":
        env[words[0]] = options.model
    elif options.model and how == "config":
        overlay[words[0]] = options.model
    if profile.config is not None:
        variable, ours = profile.config
        env[variable] = json.dumps(merged(without(_given(variable, options.env), profile.config_dropped), {**ours, **overlay}))
    files = {f"{home}/{path}": json.dumps(_for_each(content, tools)) for path, content in profile.files.items()}
    secrets = frozenset(value for value in options.env.values() if len(value) >= 8)
    return Launch(tuple(command), env, files, secrets)


def _for_each(value: Any, tools: Sequence[str]) -> Any:
    if isinstance(value, Mapping):
        return {key: _for_each(one, tools) for key, one in value.items()}
    if not isinstance(value, list):
        return value
    patterns = [one for one in value if isinstance(one, str) and "{tool}" in one]
    return [*(one for one in value if one not in patterns), *(pattern.replace("{tool}", tool) for pattern in patterns for tool in tools)]


def _given(variable: str, env: Mapping[str, str]) -> dict[str, Any]:
    if not env.get(variable):
        return {}
    try:
        value = json.loads(env[variable])
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ToolwireError("backend_unavailable", f"env.{variable} of the model is not a JSON object.")
    return value


def merged(given: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """Tables are merged, anything else is ours. Ours stand last, also in order: some agents go by it."""
    out = {key: value for key, value in given.items() if key not in ours}
    for key, value in ours.items():
        theirs = given.get(key)
        out[key] = merged(theirs, value) if isinstance(theirs, Mapping) and isinstance(value, Mapping) else value
    return out


def without(given: Mapping[str, Any], dropped: Sequence[str]) -> dict[str, Any]:
    """The table without some keys: `a`, `a.b`, or `a.*.b`."""
    out = dict(given)
    for path in dropped:
        head, _, rest = path.partition(".")
        for key in list(out) if head == "*" else [head] if head in out else []:
            if not rest:
                del out[key]
            elif isinstance(out[key], Mapping):
                out[key] = without(out[key], (rest,))
    return out
