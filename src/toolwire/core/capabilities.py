"""What a backend can do for a model, as data, and the strategies of tool calling.

A backend declares its capabilities. `gateway/plan.py` and `wire/fields.py` compare them with the request. No
other module behaves differently for different kinds of backends. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from toolwire.core.turn import Api

Strategy = Literal["native", "emulated", "constrained", "parked", "none"]
Constrained = Literal["text", "call"]
Recalled = Literal["text", "sealed"]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What one backend can do for one model.

    `fields` names the request fields (of `wire.fields.FIELDS`) that the backend forwards or honours.
    """

    tools: bool = False
    tool_choice: bool = False
    allowed_tools: bool = False
    """Whether the server accepts a `tool_choice` that lists allowed tools.

    If not, Toolwire sends only the allowed tools to the server.
    """
    parallel: bool = False
    custom_tools: bool = False
    strict: bool = False
    """Whether the server guarantees that the arguments of strict tools fit their schema."""
    schema: bool = False
    images: bool = False
    image_urls: bool = True
    """Whether the server takes image URLs. If not, the gateway fetches the images and sends them inline."""
    prefill: bool = False
    """Whether the server continues the last message of the request if that is the assistant's message."""
    constrain: frozenset[Constrained] = frozenset()
    """The kinds of output to which `Turn.constraint` can limit the model.

    `text`: text that may contain calls. `call`: exactly one call as JSON, without markers or text around it.
    """
    dialects: tuple[str, ...] = ()
    """The formats in which the model writes calls as text; empty: the default formats.

    Toolwire looks for calls in all of these formats. Its prompt teaches the model only one format: `sentinel`
    if the tuple contains it, otherwise the first one.
    """
    reasoning: bool = False
    usage: bool = True
    fields: frozenset[str] = field(default_factory=frozenset)
    passes: frozenset[str] = frozenset()
    """Request fields outside OpenAI's APIs that the backend forwards unchanged; `*`: all of them."""
    speaks: frozenset[Api] = frozenset()
    """The APIs whose requests the backend forwards as the client wrote them (`Turn.body`)."""
    recalls: frozenset[Recalled] = frozenset()
    """Which reasoning of earlier turns the model gets back.

    `text`: readable reasoning. `sealed`: encrypted reasoning.
    """
