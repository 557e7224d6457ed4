"""The file that the settings page writes: `settings.page.toml`.

The file is in the store's folder and contains only `vault.root`, models, and allow rules for MCP servers.
It is the lowest layer of the settings: the settings file, the environment and the command line override it.
Its allow rules are added to the rules of a server that is configured elsewhere. The file cannot add a server,
and its rules do not change the deny and ask rules of a server. An API key that a person pastes into the page
is in a private file of its own; the settings contain only the path of that file.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolwire.settings.types import to_toml, toml_key

FILE_NAME = "settings.page.toml"
SECRETS_NAME = "page-secrets"
LARGEST = 1024 * 1024
HEADER = """\
# Toolwire's settings page writes this file. Your own toolwire.toml, the environment and the command line
# override it. A model with the same id in toolwire.toml replaces the one here. The rules for MCP servers are
# calls for which you chose "Always allow exactly this call". They are added to your own rules.

"""


class PageFileError(Exception):
    """Raised if the file of the settings page cannot be read or written. The message is one line."""


@dataclass(slots=True)
class PageSettings:
    """The content of the settings page's file. `root`: the vault's folder; "" if the page has not set it."""

    root: str = ""
    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    rules: dict[str, list[str]] = field(default_factory=dict)
    """Allow rules, by the name of the MCP server. They are added to the server's other rules."""

    def tables(self) -> dict[str, dict[str, Any]]:
        """Returns the settings as the tables of a settings file."""
        vault = {"root": self.root} if self.root else {}
        return {name: table for name, table in (("vault", vault), ("models", self.models)) if table}


def path_beside(store_url: str, environ: Mapping[str, str]) -> Path | None:
    """Returns the path of the settings page's file, or None if the store is not a file on this machine."""
    written = store_url.removeprefix("sqlite:///")
    if written == store_url or written in ("", ":memory:"):
        return None
    if written.startswith("~/"):
        home = environ.get("HOME", "")
        return Path(home, written[2:]).parent / FILE_NAME if home else None
    return Path(written).absolute().parent / FILE_NAME


def read(path: Path) -> PageSettings:
    """Returns the content of the file; if there is no file, empty settings.

    Raises PageFileError if the file is damaged.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST + 1)
    except (FileNotFoundError, NotADirectoryError):
        return PageSettings()
    except OSError as error:
        raise PageFileError(f"cannot be read: {error.strerror or error}") from None
    if len(raw) > LARGEST:
        raise PageFileError("is too large")
    try:
        document = tomllib.loads(raw.decode())
    except (ValueError, RecursionError) as error:
        raise PageFileError(f"is not valid TOML: {error}") from None
    vault, models = document.pop("vault", {}), document.pop("models", {})
    root = vault.pop("root", "") if isinstance(vault, dict) else None
    tables = isinstance(models, dict) and all(
        id.strip() and isinstance(table, dict) for id, table in models.items()
    )
    rules = _rules(document.pop("mcp", {}))
    if document or vault or not isinstance(root, str) or not tables or rules is None:
        raise PageFileError("contains something other than vault.root, models and mcp.NAME.allow")
    return PageSettings(root, models, rules)


def _rules(tables: Any) -> dict[str, list[str]] | None:
    """Returns the rules of each server, or None if the tables contain anything else."""
    found: dict[str, list[str]] = {}
    for name, table in tables.items() if isinstance(tables, dict) else (("", None),):
        given = table.get("allow") if isinstance(table, dict) and len(table) == 1 else None
        if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
            return None
        found[name] = given
    return found


def write(path: Path, settings: PageSettings) -> None:
    """Replaces the file in one step. If the old file is damaged, it is kept under another name.

    Raises PageFileError if the file cannot be written.
    """
    lines = [HEADER]
    if settings.root:
        lines += ["[vault]\n", f"root = {to_toml(settings.root)}\n\n"]
    for id, table in settings.models.items():
        lines.append(f"[models.{toml_key(id)}]\n")
        lines += [f"{toml_key(key)} = {to_toml(value)}\n" for key, value in table.items()]
        lines.append("\n")
    for name, rules in settings.rules.items():
        if rules:
            written = "".join(f"    {to_toml(rule)},\n" for rule in rules)
            lines.append(f"[mcp.{toml_key(name)}]\nallow = [\n{written}]\n\n")
    try:
        _keep_damaged(path)
        _write_private(path, "".join(lines))
    except OSError as error:
        raise PageFileError(f"{path} cannot be written: {error.strerror or error}") from None


def _keep_damaged(path: Path) -> None:
    try:
        read(path)
    except PageFileError:
        path.replace(path.with_name(path.name + ".damaged"))


def _write_private(path: Path, text: str) -> None:
    """Writes a file that only this user can read. Readers see either the old or the new content."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def keep_secret(path: Path, id: str, secret: str) -> str:
    """Writes a secret to a private file and returns the reference to it, `file:PATH`.

    `path`: the settings page's file. The secret's file is in a folder beside it. `id`: the id of the model.
    """
    folder = path.parent / SECRETS_NAME
    name = f"{re.sub(r'[^A-Za-z0-9_-]', '_', id)[:60]}-{secrets.token_hex(8)}.key"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        _write_private(folder / name, secret + "\n")
    except OSError as error:
        raise PageFileError(f"{folder} cannot be written: {error.strerror or error}") from None
    return f"file:{folder / name}"


def drop_secrets(path: Path, settings: PageSettings) -> None:
    """Deletes the files of pasted keys that no model of the page refers to any more."""
    used = {str(value) for table in settings.models.values() for value in table.values()}
    with contextlib.suppress(OSError):
        for file in (path.parent / SECRETS_NAME).glob("*.key"):
            if f"file:{file}" not in used:
                file.unlink(missing_ok=True)
