"""The keys of [models.ID] with `backend = "openai"`, and their checks."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args
from urllib.parse import SplitResult, urlsplit

from toolwire.backends.openai.profiles import GENERIC, PROFILES, ServerProfile, by_address
from toolwire.emulate.dialects import select
from toolwire.wire.checks import is_safe

ToolsSetting = Literal["auto", "native", "emulated", "constrained"]
SystemRole = Literal["system", "developer", "keep"]
MaxTokensField = Literal["auto", "max_tokens", "max_completion_tokens"]
SchemaSetting = Literal["auto", "response_format", "json_schema", "structured_outputs", "guided_json"]
GrammarSetting = Literal["auto", "none", "lark", "structural_tag"]


@dataclass(frozen=True, slots=True)
class OpenAIOptions:
    """The options of a model.

    - `model`: the model's name at the server. The default is the id that clients send.
    - `profile`: the kind of server, a name in `profiles.PROFILES`. With `auto`, Toolwire identifies the
      server by its address or by requests to it.
    - `dialects`: the formats in which tool calls are recognized in the model's text. If it is not set, the
      usual formats and those of the model's family are recognized.
    - `system_role`: the role for instructions, system and developer messages. `keep` does not change roles.
    - `reasoning_history`: whether to send earlier reasoning back to the server as `reasoning_content`.
    - `schema_field`, `grammar`: how the server constrains the model's output. `auto`: as in the profile.
    - `proxy_from_env`: whether to send requests through the proxies in HTTP_PROXY, HTTPS_PROXY and NO_PROXY.
    - `context`: the model's context length in tokens. Toolwire requests this length from Ollama. 0: for
      Ollama, Toolwire chooses a length that suffices; for any other server, Toolwire uses the length that the
      server reports.
    - `pass_fields`: request fields to forward in addition to those of the profile. `*`: all fields that
      OpenAI does not have.
    """

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
    context: int = 0

    @property
    def auth_headers(self) -> dict[str, str]:
        """The header with the API key, and the configured headers.

        A configured header may replace the header with the key.
        """
        key = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return {**key, **self.headers}

    @property
    def server(self) -> ServerProfile:
        """The kind of server that the options name, or that the address identifies."""
        return PROFILES[self.profile] if self.profile != "auto" else by_address(self.base_url) or GENERIC

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> OpenAIOptions:
        """Reads the options from a table. Raises `ValueError` with a one-line message.

        If `given` names a profile but no address, the profile's default address is used.
        """
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
        if not _are_texts([*self.headers, *self.headers.values()]):
            raise ValueError("headers: expected a table of strings")
        for name, value in self.headers.items():
            if not _TOKEN.fullmatch(name):
                raise ValueError(f"headers: {name!r} cannot be the name of a header")
            if not _HEADER_VALUE.fullmatch(value):
                raise ValueError(f"headers: the value of {name} holds a character that a header cannot carry")
        if not _HEADER_VALUE.fullmatch(self.api_key):
            raise ValueError("api_key: holds a character that a header cannot carry")
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
    """Raises `ValueError` if the address is not a plain HTTP URL.

    The message shows no part of the address that can be a secret.
    """
    try:
        url = urlsplit(address)
        _ = url.port  # raises if the port is invalid
    except ValueError:
        url = SplitResult("", "", "", "", "")
    if url.username or url.password:
        raise ValueError("base_url: must not hold a user or password; use api_key or headers")
    if "?" in address or "#" in address:
        raise ValueError("base_url: must not hold a query or fragment; use api_key or headers for secrets")
    if url.scheme not in ("http", "https") or not url.hostname or _NOT_IN_URL.search(address):
        shown = "" if "@" in address else f", got {address!r}"
        raise ValueError(f"base_url: expected an address such as http://127.0.0.1:11434/v1{shown}")


_CHOICES = {
    "profile": ("auto", *PROFILES),
    "tools": get_args(ToolsSetting),
    "system_role": get_args(SystemRole),
    "max_tokens_field": get_args(MaxTokensField),
    "schema_field": get_args(SchemaSetting),
    "grammar": get_args(GrammarSetting),
}
_EXPECTED = {
    "bool": "true or false",
    "float": "a number",
    "int": "a whole number from 0",
    "tuple[str, ...]": "a list of strings",
    "Mapping[str, str]": "a table of strings",
}
"""What a field of `OpenAIOptions` expects, by the field's type. Fields of other types expect a string."""
OPTIONS = {option.name: _EXPECTED.get(str(option.type), "a string") for option in fields(OpenAIOptions)}
"""For each option, a phrase that says which values the option expects."""


def _are_texts(values: Sequence[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def _checked(key: str, value: Any) -> Any:
    expected = OPTIONS.get(key)
    if expected is None:
        near = difflib.get_close_matches(key, OPTIONS, 1, 0.5)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(OPTIONS)}"
        raise ValueError(f"unknown key {key}; {hint}")
    if key in _CHOICES and value not in _CHOICES[key]:
        raise ValueError(f"{key}: expected one of {', '.join(_CHOICES[key])}")
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    fits = {
        "a string": isinstance(value, str),
        "true or false": isinstance(value, bool),
        "a number": is_number,
        "a whole number from 0": isinstance(value, int) and is_number and value >= 0,
        "a list of strings": isinstance(value, list | tuple) and _are_texts(value),
        "a table of strings": isinstance(value, Mapping) and _are_texts([*value, *value.values()]),
    }
    if not fits[expected]:  # the value is not shown, because it can be a secret
        raise ValueError(f"{key}: expected {expected}")
    if key in ("api_key", "base_url"):
        return value.strip()
    return (
        float(value)
        if is_number and expected == "a number"
        else tuple(value)
        if isinstance(value, list)
        else value
    )
