"""The keys of [models.ID] with `backend = "openai"`, as a table that the configuration is checked against."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple, get_args
from urllib.parse import SplitResult, urlsplit

from toolwire.backends.openai.profiles import GENERIC, PROFILES, Profile, by_address
from toolwire.emulate.dialects import select
from toolwire.wire.checks import is_safe

ToolsSetting = Literal["auto", "native", "emulated", "constrained"]
SystemRole = Literal["system", "developer", "keep"]
MaxTokensField = Literal["auto", "max_tokens", "max_completion_tokens"]
SchemaSetting = Literal["auto", "response_format", "json_schema", "structured_outputs", "guided_json"]
GrammarSetting = Literal["auto", "none", "lark", "structural_tag"]


@dataclass(frozen=True, slots=True)
class OpenAIOptions:
    """`model` empty: the id that clients send. `system_role`: the role that instructions, system and developer messages get; `keep` leaves messages
    as they are. `reasoning_history`: earlier reasoning goes back as `reasoning_content`. `proxy_from_env`: HTTP_PROXY and its kin are obeyed.
    `profile`: the kind of server, a name of `profiles.PROFILES`; `auto`: known by its address, or asked for. `schema_field` and `grammar`: how it is
    held to a schema or a form; `auto`: as its profile says. `dialects`: how calls are looked for in text; empty: the default, and what the model's
    family writes. `pass_fields`: request fields that are passed on besides those that the profile names;
    `*`: every field that OpenAI does not know."""

    base_url: str = "https://api.openai.com/v1"
    api_key: str = field(default="", repr=False)
    model: str = ""
    profile: str = "auto"
    tools: ToolsSetting = "auto"
    dialects: tuple[str, ...] = ()
    cumulative_arguments: bool = False
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_s: float = 300.0
    connect_timeout_s: float = 10.0
    stream_usage: bool = True
    system_role: SystemRole = "system"
    reasoning_history: bool = False
    max_tokens_field: MaxTokensField = "auto"
    schema_field: SchemaSetting = "auto"
    grammar: GrammarSetting = "auto"
    proxy_from_env: bool = False
    pass_fields: tuple[str, ...] = ()

    @property
    def server(self) -> Profile:
        """The kind of server, as far as the options tell."""
        return PROFILES[self.profile] if self.profile != "auto" else by_address(self.base_url) or GENERIC

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> OpenAIOptions:
        """The options from a table, or a `ValueError` that says in one line what is wrong. A named profile brings its address."""
        checked = {key: _checked(key, value) for key, value in given.items()}
        if checked.get("profile", "auto") != "auto":
            checked.setdefault("base_url", PROFILES[checked["profile"]].base_url)
        return cls(**checked)

    def __post_init__(self) -> None:
        _check_url(self.base_url)
        if self.profile not in _CHOICES["profile"]:
            raise ValueError(f"profile: expected one of {', '.join(_CHOICES['profile'])}")
        for key in ("timeout_s", "connect_timeout_s"):
            if not getattr(self, key) > 0:
                raise ValueError(f"{key}: expected a number above 0")
        if not all(isinstance(text, str) for pair in self.headers.items() for text in pair):
            raise ValueError("headers: expected a table of strings")
        for name, value in self.headers.items():
            if not _TOKEN.fullmatch(name):
                raise ValueError(f"headers: {name!r} can not be the name of a header")
            if not _HEADER_VALUE.fullmatch(value):
                raise ValueError(f"headers: the value of {name} holds a character that a header can not carry")
        if not _HEADER_VALUE.fullmatch(self.api_key):
            raise ValueError("api_key: holds a character that a header can not carry")
        for name in self.pass_fields:
            if name != "*" and not is_safe(name):
                raise ValueError(f"pass_fields: {name!r} is not the name of a request field")
        try:
            select(self.dialects)
        except ValueError as unknown:
            raise ValueError(f"dialects: {unknown}") from None


_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_HEADER_VALUE = re.compile(r"[\x20-\x7e\xa0-\xff]*")
_NOT_IN_URL = re.compile(r"[\x00-\x20\x7f]")


def _check_url(address: str) -> None:
    """What is wrong with the address is said without showing what may be a secret in it."""
    try:
        url = urlsplit(address)
        _ = url.port  # a bad one raises
    except ValueError:
        url = SplitResult("", "", "", "", "")
    if url.username or url.password:
        raise ValueError("base_url: must not hold a user or password; use api_key or headers")
    if "?" in address or "#" in address:
        raise ValueError("base_url: must not hold a query or fragment; use api_key or headers for what is secret")
    if url.scheme not in ("http", "https") or not url.hostname or _NOT_IN_URL.search(address):
        shown = "" if "@" in address else f", got {address!r}"
        raise ValueError(f"base_url: expected an address such as http://127.0.0.1:11434/v1{shown}")


class Option(NamedTuple):
    """`kind` names the type: text, flag, number, texts, table; `choices` are the words a text may be."""

    kind: str
    default: Any
    choices: tuple[str, ...] = ()


_CHOICES = {
    "profile": ("auto", *PROFILES),
    "tools": get_args(ToolsSetting),
    "system_role": get_args(SystemRole),
    "max_tokens_field": get_args(MaxTokensField),
    "schema_field": get_args(SchemaSetting),
    "grammar": get_args(GrammarSetting),
}
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
        "number": isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300,
        "texts": False,
        "table": isinstance(value, Mapping) and all(isinstance(entry, str) for pair in value.items() for entry in pair),
    }
    if not fits[option.kind]:
        raise ValueError(f"{key}: expected {_EXPECTED[option.kind]}")  # the value is not shown: it may be a secret
    return value.strip() if key in ("api_key", "base_url") else float(value) if option.kind == "number" else value
