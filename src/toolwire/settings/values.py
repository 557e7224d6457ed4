"""Values of settings: where they are written, conversion to their types, and secrets.

A mistake raises a ConfigError. Its one-line message says where the mistake is, in which key, and what was
expected.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_origin

from toolwire.backends import registry
from toolwire.settings.types import ConfigError

TRUE = ("true", "1", "yes", "on")
FALSE = ("false", "0", "no", "off")
KEY_LISTS = ("server.keys", "server.admin_keys")
NAMELESS = '""'
"""What messages show in place of an empty name."""
SECRET_KEYS = (*KEY_LISTS, "store.url", "store.redis", "server.node_secret", "telemetry.otlp")


@dataclass(frozen=True, slots=True)
class Given:
    """A value, and where it is written.

    `text`: whether the value is a string that must still be converted to the type of its key. `folder`: the
    folder of the settings file, to which relative paths refer.
    """

    value: Any
    where: str
    text: bool = False
    folder: Path | None = None


@contextmanager
def noted(problems: list[str] | None) -> Iterator[None]:
    """Adds a ConfigError of the `with` block to the list `problems`; raises it if there is no list."""
    try:
        yield
    except ConfigError as error:
        if problems is None:
            raise
        problems.append(str(error))


def convert(entry: Given, hint: Any, key: str) -> Any:
    """Converts a value to its key's type. Raises ConfigError.

    The types are str, int, float, bool, tuple[str, ...] and Literal.
    """
    value, where = entry.value, f"{entry.where}: {key}" if entry.where else key
    if get_origin(hint) is Literal and entry.text and value.strip().lower() in ("true", "false"):
        value = value.strip().lower() == "true"
    if get_origin(hint) is Literal and isinstance(value, bool):
        value = "on" if value else "off"
    elif get_origin(hint) is tuple and entry.text:
        value = read_json(value, list, 'a JSON list of strings, such as ["a", "b"]', where)
    elif entry.text:
        value = read_text(value, hint)
    _check_text(value, where)
    try:
        return registry.fitted(value, hint)
    except registry.OptionError as error:
        got = "something else" if key in SECRET_KEYS else shown(entry.value)  # never show a secret
        raise ConfigError(f"{where}: {error}, got {got}") from None


def read_text(text: str, hint: Any) -> Any:
    """Converts text from the environment. Returns invalid text unchanged; `registry.fitted` refuses it."""
    if hint is bool:
        lowered = text.strip().lower()
        return True if lowered in TRUE else False if lowered in FALSE else text
    if hint in (int, float):
        try:
            return hint(text.strip())
        except ValueError:
            return text
    return text


def _check_text(value: Any, where: str) -> None:
    """Raises an error if a text contains a NUL character. No path, address, command or header has one."""
    texts = value if isinstance(value, list | tuple) else (value,)
    if any(isinstance(text, str) and "\0" in text for text in texts):
        raise ConfigError(f"{where}: a NUL character is not allowed")


# --- secrets


def resolve(value: Any, where: str, folder: Path | None, environ: Mapping[str, str]) -> tuple[Any, bool]:
    """Replaces every `env:NAME` and `file:PATH` in a value by the secret to which it refers.

    Also returns whether the value contained such a reference.
    """
    if isinstance(value, str):
        _check_text(value, where)
        found = secret(value, where, environ, folder)
        return (value, False) if found is None else (found, True)
    if isinstance(value, dict):
        pairs = {k: resolve(v, f"{where}.{k}", folder, environ) for k, v in value.items()}
        return {k: v for k, (v, _) in pairs.items()}, any(is_secret for _, is_secret in pairs.values())
    if isinstance(value, list | tuple):
        entries = [resolve(v, where, folder, environ) for v in value]
        return type(value)(v for v, _ in entries), any(is_secret for _, is_secret in entries)
    return value, False


def secret(written: str, where: str, environ: Mapping[str, str], folder: Path | None = None) -> str | None:
    """Returns the secret that `env:NAME` or `file:PATH` refers to, or None for any other text.

    A relative path is relative to `folder`. Raises ConfigError if the variable or file does not exist or is
    empty.
    """
    kind, colon, name = written.partition(":")
    if not colon or kind not in ("env", "file"):
        return None
    if kind == "env":
        if found := environ.get(name, "").strip():
            return found
        problem = "empty" if name in environ else "not set"
        raise ConfigError(f"{where}: the environment variable {name} is {problem}")
    file = Path(folder or "", Path(name).expanduser())
    try:
        text = file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ConfigError(f"{where}: the secret file {file} cannot be read: {why}") from error
    if not text:
        raise ConfigError(f"{where}: the secret file {file} is empty")
    return text


# --- messages


def check_known(word: str, known: Sequence[str], where: str, what: str, prefix: str = "") -> None:
    if word in known:
        return
    near = difflib.get_close_matches(word, known, 1, 0.5)
    hint = f"did you mean {prefix}{near[0]}?" if near else f"known: {', '.join(known)}"
    raise ConfigError(f"{where + ': ' if where else ''}unknown {what} {prefix}{word or NAMELESS}; {hint}")


def read_json(text: str, cls: type[Any], expected: str, where: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, cls):
        raise ConfigError(f"{where}: expected {expected}")
    return value


def shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "…"
