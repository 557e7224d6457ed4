"""The rows of a turn come out as they went in, however many there are."""

from __future__ import annotations

import sys
from time import perf_counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as some

from toolwire.core.events import CallArgs, CallBegin, Event, Finish, Text
from toolwire.observe.tape import FEW, FRAME, FULL, OUT, PAGE, RUN, Tape, batch_of

some_bytes = some.binary(max_size=40)
some_text = some.text(some.characters(exclude_categories=()), max_size=8)
odd = some.tuples(some.just("sent"), some_bytes)
frames = some.tuples(some.just(FRAME), some.one_of(some_bytes, odd), some_bytes)
batches = some.tuples(some.sampled_from((OUT, RUN, RUN + 3, 300)), some.one_of(some_text, odd), some_bytes)
rows = some.lists(some.one_of(frames, batches), max_size=4 * FEW)
events: some.SearchStrategy[Event] = some.one_of(
    some.builds(Text, some_text),
    some.builds(CallArgs, some.integers(0, 3), some.text(max_size=8)),
)
Kept = list[tuple[int, Any, bytes]]


def _filled(kept: Kept, into: Tape | None = None) -> Tape:
    made = Tape() if into is None else into
    for kind, what, became in kept:
        if isinstance(what, bytes | str):
            lane = made.lane(kind)
            lane += (perf_counter(), what, became)
            if len(lane) >= FULL:
                made.pack(lane)
        else:
            made.keep_odd(kind, what, len(what[1]), became)
    return made


def _told(tape: Tape) -> Kept:
    return [row[1:] for row in tape.all()]


@given(rows)
def test_rows_keep_their_order_their_times_and_what_they_are(kept: Kept) -> None:
    made = _filled(kept)
    times = [at for at, *_ in made.all()]
    assert made.rows == len(kept) and _told(made) == kept and times == sorted(times)
    assert made.size >= made.counted and made.size >= sum(
        len(what if isinstance(what, bytes | str) else what[1]) + len(became) for _, what, became in kept
    )


@given(some.lists(some.tuples(some.integers(0, 1), some.lists(events, max_size=3), some_bytes), max_size=3 * FEW))
def test_batches_of_events_come_back_whole_lone_surrogates_too(batches: list[tuple[int, list[Event], bytes]]) -> None:
    tape = Tape()
    for choice, batch, became in batches:
        tape.keep_batch(OUT, batch, choice, became)
    told = [(*batch_of(what), became) for _, _, what, became in tape.all()]
    expected: list[tuple[int, tuple[Event, ...], bytes]] = []
    for choice, batch, became in batches:
        if not choice and batch and all(isinstance(event, Text) for event in batch):  # each piece is a row, and the last one has what all became
            expected += [(0, (event,), became if event is batch[-1] else b"") for event in batch]
        else:
            expected.append((choice, tuple(batch), became))
    assert told == expected


@given(rows, rows)
def test_a_copy_stays_as_it_was(before: Kept, after: Kept) -> None:
    made = _filled(before)
    other = made.copy()
    _filled(after, made)
    assert _told(other) == before and _told(made) == before + after


def test_many_rows_take_little_more_than_what_they_hold() -> None:
    made = _filled([(FRAME, b"x" * 50, b"")] * 5000)
    assert made._pages is not None and made.rows == 5000 and sum(map(sys.getsizeof, made._pages)) < 1.6 * 5000 * 50
    assert {len(page) for page in made._pages} == {PAGE}


def test_rows_that_are_larger_than_a_buffer_keep_their_place() -> None:
    kept: Kept = [(FRAME, bytes([number]) * size, b"!" * (size // 3)) for number, size in enumerate([5, 9000, 8100, 8175, 8176, 1, 70_000, 3] * 4)]
    kept.insert(20, (FRAME, ("sent", b"?"), b"x" * 9000))
    assert _told(_filled(kept)) == kept


def test_batches_count_for_what_they_refer_to() -> None:
    tape = Tape()
    tape.keep_batch(OUT, [Text("x" * 300)])
    assert 300 <= tape.size < 400
    tape.keep_batch(OUT, [CallBegin(0, "f"), CallArgs(0, "y" * 5000), Finish()], 0, b"z" * 70)
    assert tape.size > 5370
