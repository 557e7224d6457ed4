"""Stop sequences in turns whose calls are found in text."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from toolwire.core.events import CallBegin, CallEnd, Event, Finish, Text, Usage
from toolwire.gateway.interpret import Stops


def read(stops: Stops, *batches: Sequence[Event]) -> tuple[str, bool]:
    """Returns the text that passed, and whether a stop sequence ended it."""
    text = ""
    for batch in batches:
        for event in stops.feed(list(batch)):
            if isinstance(event, Text):
                text += event.text
            elif isinstance(event, Finish):
                return text, event.reason == "stop"
    return text, False


@given(
    st.text("abc", max_size=12),
    st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
    st.data(),
)
def test_the_result_does_not_depend_on_how_the_text_is_split(
    text: str, sequences: list[str], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    end: list[Event] = [Finish("length")]
    got = read(Stops(sequences), *([Text(piece)] for piece in pieces), end)
    assert got == read(Stops(sequences), [Text(text)], end)
    assert not any(sequence in got[0] for sequence in sequences) and text.startswith(got[0])
    assert got[1] == any(sequence in text for sequence in sequences) and (got[1] or got[0] == text)


def test_held_text_is_sent_before_a_call_and_at_the_end() -> None:
    call: list[Event] = [CallBegin(0, "f"), CallEnd(0)]
    stops = Stops(["END", ""])
    assert stops.feed([Text("an E"), *call]) == [Text("an "), Text("E"), *call]
    assert stops.feed([Text("N"), Text("EN"), Finish("length")]) == [Text("N"), Text("EN"), Finish("length")]


def test_usage_after_a_stop_sequence_is_kept() -> None:
    assert Stops(["b"]).feed([Text("abc"), Text("d"), Usage(1, 2), Finish("stop")]) == [
        Text("a"),
        Usage(1, 2),
        Finish("stop", stop="b"),
    ]
