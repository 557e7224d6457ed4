"""What a backend can do for a model, as data, and the strategies by which tools are served.

A backend declares its capabilities. `gateway/plan.py` and `wire/fields.py` compare them with the request;
nothing else branches on the kind of a backend. Pure.
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
    """The server takes a `tool_choice` of allowed tools. Otherwise it is offered those tools alone."""
    parallel: bool = False
    custom_tools: bool = False
    strict: bool = False
    """The arguments of strict tools always fit their schema."""
    schema: bool = False
    images: bool = False
    image_urls: bool = True
    """False: the gateway fetches images given by URL and sends them inline."""
    prefill: bool = False
    """The answer can begin with given text: the last message of the turn is then the assistant's."""
    constrain: frozenset[Constrained] = frozenset()
    """What `Turn.constraint` can limit the decoder to: `text`, an answer of text and calls; `call`, an answer
    that is one call as bare JSON, without markers, and nothing else."""
    dialects: tuple[str, ...] = ()
    """The formats in which the model writes calls as text. The scanner looks for these; the prompt teaches
    the first one, unless the sentinel is among them. Empty: the default."""
    reasoning: bool = False
    usage: bool = True
    fields: frozenset[str] = field(default_factory=frozenset)
    passes: frozenset[str] = frozenset()
    """Request fields outside OpenAI's APIs that the backend forwards unchanged; `*`: all of them."""
    speaks: frozenset[Api] = frozenset()
    """The APIs whose requests the backend forwards as the client wrote them (`Turn.body`)."""
    recalls: frozenset[Recalled] = frozenset()
    """The reasoning of earlier turns that the model gets back: `text`, or `sealed` (encrypted)."""
