"""The rows of a turn come out as they went in, however they are packed."""

from __future__ import annotations

import sys

from hypothesis import given
from hypothesis import strategies as some

from toolwire.events import CallArgs, CallBegin, Event, Finish, Text
from toolwire.tape import EACH, Rows, Tape

rows = some.lists(some.one_of(some.binary(max_size=40), some.tuples(some.just("sent"), some.binary(max_size=40))), max_size=4 * EACH)
events: some.SearchStrategy[Event] = some.one_of(
    some.builds(Text, some.text(some.characters(exclude_categories=()), max_size=8)),
    some.builds(CallArgs, some.integers(0, 3), some.text(max_size=8)),
)


def _filled(kept: list[object], each: int, into: Rows | None = None) -> Rows:
    made = into or Rows()
    for number, row in enumerate(kept):
        made.new.append(row)
        made.times.append(float(number))
        if number % each == each - 1:
            made.pack()
    return made


@given(rows, some.integers(1, 2 * EACH))
def test_rows_keep_their_order_their_times_and_what_they_are(kept: list[object], each: int) -> None:
    made = _filled(kept, each)
    assert len(made) == len(kept)
    assert list(made.timed()) == [(float(number), row) for number, row in enumerate(kept)]
    assert list(made.rows()) == kept


@given(some.lists(some.tuples(some.integers(0, 1), some.lists(events, max_size=3)), max_size=3 * EACH))
def test_batches_of_events_come_back_whole_lone_surrogates_too(batches: list[tuple[int, list[Event]]]) -> None:
    tape = Tape("run")
    for number, (choice, batch) in enumerate(batches):
        tape.batch(batch, choice)
        if number % 7 == 6:
            tape.pack()
    assert [(choice, list(batch)) for _, choice, batch in tape.batches()] == batches


def test_a_copy_stays_as_it_was() -> None:
    made = _filled([b"a"] * EACH, EACH)
    other = made.copy()
    _filled([b"b"] * (EACH + 1), EACH, made)
    assert list(other.rows()) == [b"a"] * EACH and len(made) == 2 * EACH + 1


def test_packed_rows_take_little_more_than_what_they_hold() -> None:
    made = _filled([b"x" * 50] * (100 * EACH), EACH)
    packed = sum(sys.getsizeof(part) for pack in made._packs for part in (pack.joined, pack.lengths, pack.times))
    assert packed < 1.5 * 100 * EACH * 50 and not made.new


def test_batches_count_for_what_they_refer_to() -> None:
    tape = Tape("run")
    tape.batch([Text("x" * 300)])
    assert 300 <= tape.size < 400
    tape.batch([CallBegin(0, "f"), CallArgs(0, "y" * 5000), Finish()])
    assert tape.size > 5300
