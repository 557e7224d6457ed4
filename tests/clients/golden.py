"""Every kind of answer of the Messages API: what a model does, and the message that a client must get.

serve.py serves each as the models golden_NAME-native and golden_NAME-emulated; the SDKs of Anthropic ask them
in tests/conform/test_client_messages.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Content = tuple[dict[str, Any], ...]
BOTH = ("native", "emulated")
NATIVE = ("native",)
THINKING = {"thinking": {"type": "adaptive"}}
OMITTED = {"thinking": {"type": "adaptive", "display": "omitted"}}
WORDS = "São “Paulo” ☃ 🌧\n\t</tool_call> \\ {}"


@dataclass(frozen=True)
class Golden:
    script: str
    content: Content = ()
    """The content blocks, without ids."""
    stop_reason: str = "end_turn"
    more: dict[str, Any] = field(default_factory=dict)
    """Further fields of the request."""
    stop_sequence: str | None = None
    error: tuple[int, str, str] | None = None
    """Status, type and message, if the answer is an error."""
    tools: tuple[str, ...] = BOTH
    """The strategies that can give this answer."""


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def call(name: str, **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "name": name, "input": given}


def thinking(words: str, signature: str = "") -> dict[str, Any]:
    return {"type": "thinking", "thinking": words, "signature": signature}


PARIS = 'call get_weather {"city": "Paris"}'
IN_PARIS = call("get_weather", city="Paris")
IN_OSLO = call("get_weather", city="Oslo")
LOST = "The engine lost power."
GOLDEN = {
    "text": Golden("chunk 3\nsay Hello there.", (text("Hello there."),)),
    "unicode": Golden('chunk 1\nraw "São “Paulo” ☃ 🌧\\n\\t</tool_call> \\\\ {}"', (text(WORDS),)),
    "empty": Golden("chunk 1"),
    "tool": Golden(f"chunk 4\n{PARIS}", (IN_PARIS,), "tool_use"),
    "no_arguments": Golden("call list_notes", (call("list_notes"),), "tool_use"),
    "two_tools": Golden(f'{PARIS}\ncall get_weather {{"city": "Oslo"}}', (IN_PARIS, IN_OSLO), "tool_use"),
    "text_then_tool": Golden(f"say Let me look.\n{PARIS}", (text("Let me look."), IN_PARIS), "tool_use"),
    "text_tool_text_tool": Golden(
        f"say First.\n{PARIS}\nsay Then.\ncall list_notes",
        (text("First."), IN_PARIS, text("Then."), call("list_notes")),
        "tool_use",
        tools=NATIVE,
    ),
    "thinking_then_text": Golden(
        "chunk 2\nthink Easy.\nsign sealed==\nsay Yes.",
        (thinking("Easy.", "sealed=="), text("Yes.")),
        more=THINKING,
    ),
    "thinking_then_tool": Golden(
        f"think Easy.\nsign sealed==\n{PARIS}",
        (thinking("Easy.", "sealed=="), IN_PARIS),
        "tool_use",
        THINKING,
    ),
    "thinking_unsigned": Golden(f"think Easy.\n{PARIS}", (thinking("Easy."), IN_PARIS), "tool_use", THINKING),
    "thinking_interleaved": Golden(
        f"think Easy.\nsign one\n{PARIS}\nthink More.\nsign two\ncall list_notes",
        (thinking("Easy.", "one"), IN_PARIS, thinking("More.", "two"), call("list_notes")),
        "tool_use",
        THINKING,
        tools=NATIVE,
    ),
    "thinking_omitted": Golden(
        "think Easy.\nsign sealed==\nsay Yes.", (thinking("", "sealed=="), text("Yes.")), more=OMITTED
    ),
    "thinking_not_asked_for": Golden("think Easy.\nsign sealed==\nsay Yes.", (text("Yes."),)),
    "redacted_thinking": Golden(
        "redact c2VhbGVk\nsay Yes.",
        ({"type": "redacted_thinking", "data": "c2VhbGVk"}, text("Yes.")),
        more=THINKING,
    ),
    "max_tokens_in_text": Golden("say Once upon a\nfinish length", (text("Once upon a"),), "max_tokens"),
    "max_tokens_in_tool": Golden(
        'chunk 5\ncall get_weather {"city": "Pa\nfinish length',
        (call("get_weather"),),
        "max_tokens",
        tools=NATIVE,
    ),
    "max_tokens_in_nested_tool": Golden(
        'chunk 5\ncall get_weather {"city": "Paris", "days": [{"a": 1}, {"b": tr\nfinish length',
        (call("get_weather", city="Paris", days=[{"a": 1}, {}]),),
        "max_tokens",
        tools=NATIVE,
    ),
    "context_window": Golden(
        "say Once upon a\nfinish context_window", (text("Once upon a"),), "model_context_window_exceeded"
    ),
    "stop_sequence": Golden(
        "say one, two,\nfinish stop three",
        (text("one, two,"),),
        "stop_sequence",
        {"stop_sequences": ["three"]},
        stop_sequence="three",
    ),
    "refusal": Golden("refuse I cannot.", (text("I cannot."),), "refusal"),
    "refusal_empty": Golden("finish content_filter", (), "refusal"),
    "error_first": Golden("fail overloaded Busy.", error=(529, "overloaded_error", "Busy.")),
    "error_too_long": Golden(
        "fail context_length 9 tokens, 8 fit.",
        error=(400, "invalid_request_error", "prompt is too long: 9 tokens, 8 fit."),
    ),
    "error_in_text": Golden(f"say Half an\nfail server {LOST}", error=(500, "api_error", LOST)),
    "error_in_tool": Golden(
        f'chunk 4\ncall get_weather {{"city": "Pa\nfail server {LOST}', error=(500, "api_error", LOST)
    ),
    "cut": Golden(
        "say Half an\ncut", error=(502, "api_error", "The model's answer broke off before it was complete.")
    ),
}
