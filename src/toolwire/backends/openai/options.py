"""The keys of [models.ID] with `backend = "openai"`, as a table that the configuration is checked against. Standard library only."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple, get_args
from urllib.parse import urlsplit

ToolsSetting = Literal["auto", "native", "emulated", "constrained"]
SystemRole = Literal["system", "developer", "keep"]
MaxTokensField = Literal["auto", "max_tokens", "max_completion_tokens"]


@dataclass(frozen=True, slots=True)
class OpenAIOptions:
    """`model` empty: the id that clients send. `system_role`: the role that instructions, system and developer messages get; `keep` leaves messages
    as they are. `reasoning_history`: earlier reasoning goes back as `reasoning_content`. `proxy_from_env`: HTTP_PROXY and its kin are obeyed."""

    base_url: str = "https://api.openai.com/v1"
    api_key: str = field(default="", repr=False)
    model: str = ""
    tools: ToolsSetting = "auto"
    dialects: tuple[str, ...] = ("sentinel", "hermes", "use_tool")
    cumulative_arguments: bool = False
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_s: float = 300.0
    connect_timeout_s: float = 10.0
    stream_usage: bool = True
    system_role: SystemRole = "system"
    reasoning_history: bool = False
    max_tokens_field: MaxTokensField = "auto"
    proxy_from_env: bool = False

    @property
    def max_tokens_name(self) -> str:
        """OpenAI's newer models refuse `max_tokens`; most other servers know only that."""
        if self.max_tokens_field != "auto":
            return self.max_tokens_field
        return "max_completion_tokens" if urlsplit(self.base_url).hostname == "api.openai.com" else "max_tokens"

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> OpenAIOptions:
        """The options from a table, or a `ValueError` that says in one line what is wrong."""
        return cls(**{key: _checked(key, value) for key, value in given.items()})

    def __post_init__(self) -> None:
        url = urlsplit(self.base_url)
        if url.username or url.password:
            raise ValueError("base_url: must not hold a user or password; use api_key or headers")
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError(f"base_url: expected an address such as http://127.0.0.1:11434/v1, got {self.base_url!r}")
        if self.tools == "constrained":
            raise ValueError('tools: "constrained" is not available for this backend yet; use "auto", "native" or "emulated"')
        for key in ("timeout_s", "connect_timeout_s"):
            if not getattr(self, key) > 0:
                raise ValueError(f"{key}: expected a number above 0")
        if not all(isinstance(text, str) for pair in self.headers.items() for text in pair):
            raise ValueError("headers: expected a table of strings")


class Option(NamedTuple):
    """`kind` names the type: text, flag, number, texts, table; `choices` are the words a text may be."""

    kind: str
    default: Any
    choices: tuple[str, ...] = ()


_CHOICES = {"tools": get_args(ToolsSetting), "system_role": get_args(SystemRole), "max_tokens_field": get_args(MaxTokensField)}
_KINDS = {"bool": "flag", "float": "number", "tuple[str, ...]": "texts", "Mapping[str, str]": "table"}
_EXPECTED = {
    "text": "a string",
    "flag": "true or false",
    "number": "a number",
    "texts": "a list of strings",
    "table": "a table of strings",
}

OPTIONS: dict[str, Option] = {
    option.name: Option(_KINDS.get(str(option.type), "text"), {} if option.name == "headers" else option.default, _CHOICES.get(option.name, ()))
    for option in fields(OpenAIOptions)
}


def _checked(key: str, value: Any) -> Any:
    option = OPTIONS.get(key)
    if option is None:
        near = difflib.get_close_matches(key, OPTIONS, 1, 0.5)
        raise ValueError(f"unknown key {key}; " + (f"did you mean {near[0]}?" if near else f"known: {', '.join(OPTIONS)}"))
    if option.choices and value not in option.choices:
        raise ValueError(f"{key}: expected one of {', '.join(option.choices)}")
    if option.kind == "texts" and isinstance(value, list | tuple) and all(isinstance(entry, str) for entry in value):
        return tuple(value)
    fits = {
        "text": isinstance(value, str),
        "flag": isinstance(value, bool),
        "number": isinstance(value, int | float) and not isinstance(value, bool),
        "texts": False,
        "table": isinstance(value, Mapping) and all(isinstance(entry, str) for pair in value.items() for entry in pair),
    }
    if not fits[option.kind]:
        raise ValueError(f"{key}: expected {_EXPECTED[option.kind]}")  # the value is not shown: it may be a secret
    return value.strip() if key in ("api_key", "base_url") else float(value) if option.kind == "number" else value
