"""The rows of a turn come out as they went in, however many there are."""

from __future__ import annotations

import sys

from hypothesis import given
from hypothesis import strategies as some

from toolwire.events import CallArgs, CallBegin, Event, Finish, Text
from toolwire.tape import FEW, Rows, Tape

rows = some.lists(some.one_of(some.binary(max_size=40), some.tuples(some.just("sent"), some.binary(max_size=40))), max_size=4 * FEW)
events: some.SearchStrategy[Event] = some.one_of(
    some.builds(Text, some.text(some.characters(exclude_categories=()), max_size=8)),
    some.builds(CallArgs, some.integers(0, 3), some.text(max_size=8)),
)


def _filled(kept: list[bytes | tuple[str, bytes]], into: Rows | None = None) -> Rows:
    made = Rows() if into is None else into
    for row in kept:
        if isinstance(row, bytes):
            made.keep(row)
        else:
            made.keep_odd(row, len(row[1]))
    return made


@given(rows)
def test_rows_keep_their_order_their_times_and_what_they_are(kept: list[bytes | tuple[str, bytes]]) -> None:
    made = _filled(kept)
    times = [at for at, _ in made.timed()]
    assert len(made) == len(kept) and [row for _, row in made.timed()] == list(made.rows()) == kept
    assert times == sorted(times) and len(times) == len(kept)
    assert made.size >= sum(len(row) if isinstance(row, bytes) else len(row[1]) for row in kept)


@given(some.lists(some.tuples(some.integers(0, 1), some.lists(events, max_size=3)), max_size=3 * FEW))
def test_batches_of_events_come_back_whole_lone_surrogates_too(batches: list[tuple[int, list[Event]]]) -> None:
    tape = Tape("run")
    for choice, batch in batches:
        tape.batch(batch, choice)
    assert [(choice, list(batch)) for _, choice, batch in tape.batches()] == batches


@given(rows, rows)
def test_a_copy_stays_as_it_was(before: list[bytes | tuple[str, bytes]], after: list[bytes | tuple[str, bytes]]) -> None:
    made = _filled(before)
    other = made.copy()
    _filled(after, made)
    assert list(other.rows()) == before and list(made.rows()) == before + after


def test_many_rows_take_little_more_than_what_they_hold() -> None:
    made = _filled([b"x" * 50] * 5000)
    packed = made._packed
    assert packed is not None and not made._few
    assert sum(map(sys.getsizeof, (packed.data, packed.lengths, packed.times))) < 1.5 * 5000 * 50


def test_batches_count_for_what_they_refer_to() -> None:
    tape = Tape("run")
    tape.batch([Text("x" * 300)])
    assert 300 <= tape.size < 400
    tape.batch([CallBegin(0, "f"), CallArgs(0, "y" * 5000), Finish()])
    assert tape.size > 5300
