"""Usage: every turn is counted once, even if the store fails, and can be queried."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from toolwire.access import usage
from toolwire.access.usage import DAY, HOUR, MOST_ROWS, STALE_S, UsageBook, UsageQuery, month_of, next_month
from toolwire.core.errors import ToolwireError
from toolwire.gateway.records import TurnSummary
from toolwire.store.store import Store

NOON = int(datetime(2026, 3, 14, 12, tzinfo=UTC).timestamp())


def turn(
    key: str = "k",
    model: str = "m",
    tokens: tuple[int, int] = (10, 5),
    error: str | None = None,
    calls: int = 0,
) -> TurnSummary:
    return TurnSummary(
        request_id="req_1",
        key_id=key,
        api="chat",
        model=model,
        backend="scripted",
        strategy="none",
        stream=False,
        status=200,
        finish="stop",
        error_kind=error,
        tool_call_count=calls,
        tool_call_names=(),
        tool_call_ids=(),
        tool_call_truncated=False,
        output_mode="openai-json",
        input_tokens=tokens[0],
        output_tokens=tokens[1],
        first_byte_s=None,
        duration_s=0.1,
        report="",
        cancelled=False,
        cached_tokens=2,
    )


class Time:
    def __init__(self) -> None:
        self.now = float(NOON)

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn waits longer than a second for the store: a busy machine may read it slowly."""
    monkeypatch.setattr(usage, "WAIT_S", 30.0)


@pytest.fixture
def book(store: Store, time: Time) -> UsageBook:
    return UsageBook(store, ("m",), clock=time, ticks=time)


def day(time: Time, **more: Any) -> UsageQuery:
    start = int(time.now) // DAY * DAY
    return UsageQuery(start, start + DAY, HOUR, **more)


async def test_turns_are_summed_by_hour_and_reported_at_once(book: UsageBook, time: Time) -> None:
    book.observe(turn(calls=2))
    book.observe(turn(tokens=(1, 1)))
    book.observe(turn(error="backend", tokens=(0, 0)))
    time.now += HOUR
    book.observe(turn())
    assert await book.ask(day(time)) == [
        (NOON, (), [2, 1, 11, 6, 6, 2]),
        (NOON + HOUR, (), [1, 0, 10, 2, 5, 0]),
    ]
    await book.close()


async def test_counts_are_stored_on_close(store_url: str, time: Time) -> None:
    store = Store(store_url)
    book = UsageBook(store, clock=time)
    book.observe(turn())
    await book.close()
    await store.close()
    again = Store(store_url)
    assert await UsageBook(again, clock=time).ask(day(time)) == [(NOON, (), [1, 0, 10, 2, 5, 0])]
    await again.close()


async def test_counts_are_written_after_a_moment(
    store: Store, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolwire.access.usage.FLUSH_S", 0.05)
    book, other = UsageBook(store, clock=time), UsageBook(store, clock=time)
    book.observe(turn())
    async with asyncio.timeout(20):
        while await other.ask(day(time)) != [(NOON, (), [1, 0, 10, 2, 5, 0])]:
            await asyncio.sleep(0.02)
    await book.close()


async def test_a_batch_ends_together_with_its_task(store: Store, time: Time) -> None:
    """Otherwise a close at this moment would wait again and again for a task that has ended."""
    book = UsageBook(store, clock=time)
    book.observe(turn())
    task = book._flush()
    async with asyncio.timeout(20):
        while not task.done():
            await asyncio.sleep(0)
        assert book._flushing is None
        await book.close()


async def test_usage_can_be_grouped_by_key_and_model(book: UsageBook, time: Time) -> None:
    for key, model in (("a", "m"), ("a", "n"), ("b", "m")):
        book.observe(turn(key, model))
    assert [group for _, group, _ in await book.ask(day(time, group_by=("key_id", "model")))] == [
        ("a", "m"),
        ("a", "n"),
        ("b", "m"),
    ]
    assert [(group, counts[0]) for _, group, counts in await book.ask(day(time, group_by=("model",)))] == [
        (("m",), 2),
        (("n",), 1),
    ]
    assert [counts[0] for _, _, counts in await book.ask(day(time, keys=("a",)))] == [2]
    assert [counts[0] for _, _, counts in await book.ask(day(time, keys=("a",), models=("n",)))] == [1]
    assert await book.ask(day(time, keys=())) == []
    midnight = NOON // DAY * DAY
    assert [
        (at, counts[0]) for at, _, counts in await book.ask(UsageQuery(midnight, midnight + DAY, DAY))
    ] == [(midnight, 3)]


async def test_unwritten_counts_are_reported_too(time: Time) -> None:
    book = UsageBook(None, clock=time)
    book.observe(turn("a"))
    book.observe(turn("b"))
    assert await book.ask(day(time, group_by=("key_id",))) == [
        (NOON, ("a",), [1, 0, 10, 2, 5, 0]),
        (NOON, ("b",), [1, 0, 10, 2, 5, 0]),
    ]
    assert await book.ask(day(time, keys=("c",))) == []
    await book.close()


async def test_invented_model_names_of_failed_turns_count_as_unknown(book: UsageBook, time: Time) -> None:
    for number in range(50):
        book.observe(turn(model=f"invented-{number}", error="backend"))
    book.observe(turn(model="m", error="backend"))
    assert [group for _, group, _ in await book.ask(day(time, group_by=("model",)))] == [("m",), ("unknown",)]


async def test_unwritten_counts_are_bounded(time: Time) -> None:
    book = UsageBook(None, clock=time)
    for number in range(MOST_ROWS + 100):
        book.observe(turn(model=f"m{number}"))
    rows = await book.ask(day(time, group_by=("model",)))
    assert len(rows) == MOST_ROWS + 1 and sum(counts[0] for _, _, counts in rows) == MOST_ROWS + 100


# --- a failing store ---


class Troubled:
    """A store whose replies can be lost, before or after the work is done."""

    def __init__(self, store: Store) -> None:
        self.store, self.trouble = store, ""

    async def run(self, work: Callable[[Any], Any], action: str) -> Any:
        if self.trouble == "before" or (self.trouble == "full" and action == "count usage"):
            raise ToolwireError("server", "no store")
        done = await self.store.run(work, action)
        if self.trouble == "behind":
            raise ToolwireError("server", "the connection was lost")
        return done


@pytest.mark.parametrize("trouble", ["before", "behind"])
async def test_nothing_is_lost_or_counted_twice_when_a_write_fails(
    store: Store, time: Time, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    troubled: Any = Troubled(store)
    book = UsageBook(troubled, clock=time, ticks=time)
    book.observe(turn())
    troubled.trouble = trouble
    with caplog.at_level(logging.WARNING, "toolwire.usage"):
        for _ in range(3):
            await book.flush()
            book.observe(turn())
        assert len(caplog.records) == 1
        troubled.trouble = ""
        for _ in range(2):
            await book.flush()
    await book.close()
    assert [counts for _, _, counts in await UsageBook(store, clock=time).ask(day(time))] == [
        [4, 0, 40, 8, 20, 0]
    ]


async def test_a_close_that_cannot_write_logs_what_is_lost(
    store: Store, time: Time, caplog: pytest.LogCaptureFixture
) -> None:
    troubled: Any = Troubled(store)
    troubled.trouble = "before"
    book = UsageBook(troubled, clock=time)
    book.observe(turn())
    await book.close()
    assert "1 rows are lost" in caplog.text


# --- months ---


async def test_the_sum_of_a_month_includes_other_nodes(store: Store, time: Time) -> None:
    here, there = UsageBook(store, clock=time, ticks=time), UsageBook(store, clock=time, ticks=time)
    there.observe(turn("k"))
    await there.flush()
    assert ((await here.month("k")).requests, (await here.month("k")).tokens) == (1, 15)
    here.observe(turn("k"))
    here.observe(turn("other"))
    here.observe(turn("k", error="backend", tokens=(0, 0)))
    assert ((await here.month("k")).requests, (await here.month("k")).tokens) == (2, 30)
    there.observe(turn("k"))
    await there.flush()
    time.now += STALE_S + 1
    assert ((await here.month("k")).requests, (await here.month("k")).tokens) == (3, 45)
    for book in (here, there):
        await book.close()


async def test_the_sum_of_a_month_is_correct_while_the_store_is_down(store: Store, time: Time) -> None:
    troubled: Any = Troubled(store)
    book = UsageBook(troubled, clock=time, ticks=time)
    book.observe(turn("k"))
    assert (await book.month("k")).requests == 1
    troubled.trouble = "before"
    for _ in range(3):
        book.observe(turn("k"))
        time.now += STALE_S + 1
        await book.month("k")
    assert (await book.month("k")).requests == 4
    troubled.trouble = ""
    await book.flush()
    assert (await book.month("k")).requests == 4
    await book.close()


async def test_a_month_that_was_never_read_does_not_count_as_unused(store: Store, time: Time) -> None:
    """A node that has not seen the key before must not grant its budget again while the store is down."""
    before = UsageBook(store, clock=time, ticks=time)
    before.observe(turn("k"))
    await before.close()
    troubled: Any = Troubled(store)
    troubled.trouble = "before"
    book = UsageBook(troubled, clock=time, ticks=time)
    for _ in range(2):
        with pytest.raises(ToolwireError) as caught:
            await book.month("k")
        assert (caught.value.failure.kind, caught.value.failure.retry_after_s) == ("overloaded", 1)
    troubled.trouble = ""
    assert (await book.month("k")).requests == 1
    troubled.trouble = "before"
    time.now += STALE_S + 1
    assert (await book.month("k")).requests == 1
    troubled.trouble = ""
    await book.close()


async def test_a_month_can_be_read_while_the_disk_is_full(store: Store, time: Time) -> None:
    before = UsageBook(store, clock=time, ticks=time)
    before.observe(turn("k"))
    await before.close()
    troubled: Any = Troubled(store)
    troubled.trouble = "full"
    book = UsageBook(troubled, clock=time, ticks=time)
    book.observe(turn("k"))
    assert (await book.month("k")).requests == 2
    book.observe(turn("k"))
    assert (await book.month("k")).requests == 3
    troubled.trouble = ""
    await book.flush()
    await book.flush()
    assert (await book.month("k")).requests == 3
    await book.close()


async def test_a_month_read_during_a_write_is_complete(store: Store, time: Time) -> None:
    """The write that is already running does not read their key."""
    before = UsageBook(store, clock=time, ticks=time)
    before.observe(turn("k"))
    await before.close()
    book = UsageBook(store, clock=time, ticks=time)
    book.observe(turn("other"))
    writing = asyncio.ensure_future(book.flush())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    months = await asyncio.gather(*(book.month("k") for _ in range(3)))
    assert [month.requests for month in months] == [1, 1, 1]
    await writing
    await book.close()


async def test_a_store_that_hangs_refuses_an_unknown_month_soon(
    store: Store, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "WAIT_S", 0.1)
    answers = asyncio.Event()

    class Hangs:
        async def run(self, work: Callable[[Any], Any], action: str) -> Any:
            await answers.wait()
            return await store.run(work, action)

    hangs: Any = Hangs()
    book = UsageBook(hangs, clock=time, ticks=time)
    book.observe(turn("other"))
    writing = asyncio.ensure_future(book.flush())
    await asyncio.sleep(0)
    async with asyncio.timeout(20):
        with pytest.raises(ToolwireError, match="budget"):
            await book.month("k")
    answers.set()
    await writing
    assert (await book.month("k")).requests == 0
    await book.close()


async def test_a_new_month_starts_at_zero(book: UsageBook, time: Time) -> None:
    book.observe(turn("k"))
    assert (await book.month("k")).tokens == 15
    time.now = float(datetime(2026, 4, 1, tzinfo=UTC).timestamp())
    assert (await book.month("k")).tokens == 0
    book.observe(turn("k"))
    assert (await book.month("k")).tokens == 15
    await book.close()


@pytest.mark.parametrize(
    ("month", "following"), [((2026, 3), (2026, 4)), ((2026, 12), (2027, 1)), ((2028, 2), (2028, 3))]
)
def test_months_follow_the_calendar(month: tuple[int, int], following: tuple[int, int]) -> None:
    inside = datetime(*month, 28, 23, 59, tzinfo=UTC).timestamp()
    assert month_of(inside) == datetime(*month, 1, tzinfo=UTC).timestamp()
    assert next_month(inside) == datetime(*following, 1, tzinfo=UTC).timestamp()
