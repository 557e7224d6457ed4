"""The form that adds a model on the settings page: its choices, and the checks of its fields.

The form can set the model, the address and the key. It cannot set a command, and the only file that it can
name is a file with a key.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from toolwire.backends import registry
from toolwire.backends.openai.profiles import PROFILES
from toolwire.settings.discover import is_key
from toolwire.settings.load import secret
from toolwire.settings.types import ConfigError
from toolwire.surfaces.web.context import field, invalid

LARGEST_KEY = 4096
MODEL_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")
ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,100}")


@dataclass(frozen=True, slots=True)
class ModelKind:
    """A choice of the form.

    `profile`: the kind of OpenAI-compatible server. `provider`: the hosted provider.
    """

    id: str
    name: str
    backend: str
    profile: str = ""
    provider: str = ""
    key: str = ""
    """The usual environment variable with the key; "" if there usually is no key."""
    asks: tuple[str, ...] = ("model", "base_url", "api_key")

    @property
    def base_url(self) -> str:
        return PROFILES[self.profile].base_url if self.profile else ""

    def as_json(self) -> dict[str, Any]:
        shown = {"id": self.id, "name": self.name, "base_url": self.base_url, "key": self.key}
        return {**shown, "asks": list(self.asks), "lists": self.backend in registry.SOURCES}


_AGENT = ("model",)
KINDS = (
    ModelKind("ollama", "Ollama", "openai", "ollama"),
    ModelKind("lmstudio", "LM Studio", "openai", "lmstudio"),
    ModelKind("llamacpp", "llama.cpp server", "openai", "llamacpp"),
    ModelKind("vllm", "vLLM", "openai", "vllm"),
    ModelKind("openai", "OpenAI", "openai", "openai", key="OPENAI_API_KEY"),
    ModelKind("openrouter", "OpenRouter", "openai", "openrouter", key="OPENROUTER_API_KEY"),
    ModelKind("anthropic", "Anthropic", "hosted", provider="anthropic", key="ANTHROPIC_API_KEY"),
    ModelKind("google", "Google Gemini", "hosted", provider="google", key="GEMINI_API_KEY"),
    ModelKind("compatible", "Another OpenAI-compatible server", "openai"),
    ModelKind("codex", "Codex (installed on the server)", "codex", asks=_AGENT),
    ModelKind("local", "Embedded model (runs inside Toolwire)", "local", asks=()),
    ModelKind("scripted", "Scripted demo (no real model)", "scripted", asks=()),
)
_BY_ID = {kind.id: kind for kind in KINDS}


def id_of(draft: dict[str, Any]) -> str:
    id: str = field(draft, "id", str, required=True).strip()
    if not MODEL_ID.fullmatch(id):
        raise invalid(
            "A name has at most 64 letters, digits and . _ : -, and begins with a letter or a digit.", "id"
        )
    return id


def kind_of(draft: dict[str, Any]) -> ModelKind:
    kind = _BY_ID.get(field(draft, "kind", str, required=True))
    if kind is None:
        raise invalid("Choose a kind of model from the list.", "kind")
    return kind


def kind_that_wrote(table: dict[str, Any]) -> ModelKind:
    """Returns the choice in the form (`ModelKind`) that a person made to add this model."""
    backend, profile = table.get("backend"), table.get("profile", "")
    provider = str(table.get("model", "")).partition(":")[0] if backend == "hosted" else ""
    found = (
        kind for kind in KINDS if (kind.backend, kind.profile, kind.provider) == (backend, profile, provider)
    )
    return next(found, _BY_ID["compatible"])


def table_of(draft: dict[str, Any]) -> dict[str, Any]:
    """Returns the draft as the table of a model in a settings file.

    Raises an error if a field is not valid.
    """
    kind = kind_of(draft)
    model = _line(draft, "model", 200)
    base_url = _line(draft, "base_url", 500).rstrip("/") if "base_url" in kind.asks else ""
    table: dict[str, Any] = {"backend": kind.backend}
    if kind.profile:
        table["profile"] = kind.profile
    if "model" in kind.asks and (model or "base_url" in kind.asks):
        if not model:
            raise invalid("Choose a model, or type * to offer every model of the server.", "model")
        table["model"] = f"{kind.provider}:{model}" if kind.provider else model
    if base_url:
        _check_address(base_url)
    elif kind.id == "compatible":
        raise invalid("Type the server's address, such as http://127.0.0.1:8000/v1.", "base_url")
    if base_url or kind.base_url:
        table["base_url"] = base_url or kind.base_url
    if "api_key" in kind.asks and (reference := _line(draft, "key", 500)):
        _check_reference(reference)
        table["api_key"] = reference
    return table


def _line(draft: dict[str, Any], name: str, most: int) -> str:
    text: str = field(draft, name, str, "").strip()
    if len(text) > most or not text.isprintable():
        raise invalid(f"'{name}' must be one line of at most {most} characters.", name)
    return text


def _check_address(address: str) -> None:
    try:
        parts = urlsplit(address)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        valid = False
    if not valid or parts.username or parts.password or parts.query or parts.fragment:
        raise invalid(
            "The address must look like http://127.0.0.1:8000/v1, without a user name or a query.", "base_url"
        )


def _check_reference(reference: str) -> None:
    """Raises an error unless the reference leads to a key: one word that fits into a header.

    Without this check, a person with an admin key could send any file of the server to their own address.
    """
    kind, _, name = reference.partition(":")
    if kind == "env" and not ENVIRONMENT_NAME.fullmatch(name):
        raise invalid("Name the environment variable with the key, such as OPENAI_API_KEY.", "key")
    if kind not in ("env", "file") or not name:
        raise invalid("Write the key as env:NAME or file:PATH, or paste it.", "key")
    if kind == "file":
        file = Path(os.path.expanduser(name))
        if not file.is_absolute() or not file.is_file() or file.stat().st_size > LARGEST_KEY:
            raise invalid(f"{name} is not a file with a key. Type the absolute path of the file.", "key")
    try:
        found = secret(reference, "key", os.environ)
    except ConfigError as error:
        raise invalid(str(error).removeprefix("key: ") + ".", "key") from None
    if not is_key(found or ""):
        raise invalid("The variable or file contains no key. A key is one word without spaces.", "key")


def pasted_key(draft: dict[str, Any]) -> str:
    """Returns the key that the person pasted; "" if none was pasted."""
    if "api_key" not in kind_of(draft).asks:
        return ""
    pasted: str = field(draft, "pasted", str, "").strip()
    if pasted and (len(pasted) > LARGEST_KEY or not is_key(pasted)):
        raise invalid("The pasted key must be one word without spaces.", "pasted")
    return pasted
