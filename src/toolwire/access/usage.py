"""Usage: requests, tokens and tool calls, by key, model and hour.

A turn that ends is counted in memory at once, as answered or failed. Counts are written every `FLUSH_S`
seconds and at shutdown, in one transaction. Each batch has a number, so a batch whose commit was not
confirmed is never counted twice. Counts that cannot be written are kept and written later. A key with a
budget can only be used when its usage of the month is known. Hours, days and months are in UTC.

If a key has a budget, each of its turns reserves a part of the budget (`Hold`) until the turn is counted.
Releasing the reservation and counting the turn is one step, so no other turn can be admitted in between. The
turn's usage is written within `FLUSH_BUDGET_S`, so that a process that is killed loses little usage.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import add, attrgetter
from typing import TYPE_CHECKING, Any

from toolwire.core.errors import ToolwireError
from toolwire.core.ids import random_id

if TYPE_CHECKING:
    from toolwire.gateway.records import TurnSummary
    from toolwire.store.store import Store

log = logging.getLogger("toolwire.usage")
FLUSH_S = 3.0
FLUSH_BUDGET_S = 0.2
STALE_S = 2 * FLUSH_S
"""A month's sum that is older than this is read again, because other nodes add to it too."""
NEVER = float("-inf")
WAIT_S = 1.0
CLOSE_S = 2.0
HOUR, DAY = 3600, 86400
MOST_ROWS = 50_000
"""How many rows may wait to be written. If there are more, further models are counted as one model."""
UNKNOWN = "unknown"
LONGEST_NAME = 200
BATCHES_S = 7 * DAY

COUNTS = ("requests", "failed", "input_tokens", "cached_tokens", "output_tokens", "tool_calls")
_counted = attrgetter("input_tokens", "cached_tokens", "output_tokens", "tool_call_count")
"""Returns the counts of a turn, from its summary, in the order of `COUNTS`."""
Row = tuple[str, int, str]
"""The key, hour and model of a row of counts."""
Counts = list[int]
GROUPS = {"model": "model", "key": "key_id", "api_key_id": "key_id"}


@dataclass(slots=True)
class Spent:
    """A key's usage of a month: the sum from the store, plus what this node has counted since."""

    month: int
    requests: int = 0
    tokens: int = 0
    read_at: float = NEVER


@dataclass(frozen=True, slots=True, eq=False)
class Hold:
    """The part of a key's monthly budget that a running turn has reserved."""

    key_id: str
    requests: int
    tokens: int


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """A query of `GET /v1/usage`.

    `keys`, `models`: the keys and models to include; None for all. `width`: seconds per bucket. `group_by`:
    which of the columns `key_id` and `model` the results are grouped by.
    """

    start: int
    end: int
    width: int
    keys: tuple[str, ...] | None = None
    models: tuple[str, ...] | None = None
    group_by: tuple[str, ...] = ()


class UsageBook:
    """Counts and stores usage.

    `models`: the model names that may appear for failed turns. A client can invent other names; they are
    counted under one common name.
    """

    def __init__(
        self,
        store: Store | None,
        models: Container[str] = (),
        *,
        clock: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._models = models
        self._clock, self._ticks = clock, ticks
        self._node = random_id("node_")
        self._batch = 0
        self._counted: dict[Row, Counts] = {}
        self._writing: dict[Row, Counts] = {}
        """The batch that is being written, or could not be written yet."""
        self._months: dict[str, Spent] = {}
        self._held: dict[str, tuple[int, int]] = {}
        """The requests and tokens that running turns have reserved, by key."""
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._flushing: asyncio.Task[None] | None = None
        self._failing = False
        self._closed = False

    # --- counting ---

    def observe(self, summary: TurnSummary) -> None:
        """Counts a turn that has ended."""
        if summary.hold is not None:
            self.release(summary.hold)
        now = self._clock()
        failed = summary.error_kind is not None
        model = summary.model[:LONGEST_NAME] if not failed or summary.model in self._models else UNKNOWN
        row = (summary.key_id, int(now) // HOUR * HOUR, model or UNKNOWN)
        if row not in self._counted and len(self._counted) >= MOST_ROWS:
            row = (*row[:2], UNKNOWN)
        counts = self._counted.get(row)
        if counts is None:
            counts = self._counted[row] = [0] * len(COUNTS)
        counts[:] = map(add, counts, (not failed, failed, *_counted(summary)))
        spent = self._months.get(summary.key_id)
        if spent is not None:
            self._turn_month(spent, now)
            spent.requests += not failed
            spent.tokens += summary.input_tokens + summary.output_tokens
        if self._timer is None or spent is not None:
            self._flush_within(FLUSH_S if spent is None else FLUSH_BUDGET_S)

    def _flush_within(self, seconds: float) -> None:
        if self._store is None or self._closed:
            return
        due = self._ticks() + seconds
        if self._timer is not None:
            if self._due <= due:
                return
            self._timer.cancel()
        self._due = due
        self._timer = asyncio.get_running_loop().call_later(seconds, self._flush_soon)

    def _flush_soon(self) -> None:
        self._timer = None
        self._flush()

    # --- writing ---

    async def flush(self) -> None:
        """Writes the counts to the store. Errors are logged, and the counts are written later."""
        await asyncio.shield(self._flush())

    def _flush(self) -> asyncio.Task[None]:
        if self._flushing is None:
            self._flushing = asyncio.ensure_future(self._flushed())
        return self._flushing

    async def _flushed(self) -> None:
        """Writes once, and clears `_flushing` at the end, so that nobody waits for a task that has ended."""
        try:
            await self._write()
        finally:
            self._flushing = None
            if (self._writing or self._counted) and self._timer is None:
                self._flush_within(FLUSH_S)

    async def _write(self) -> None:
        """Writes one batch, then reads the sums of the month for keys with budgets."""
        if self._store is None:
            return
        if not self._writing:
            self._writing, self._counted = self._counted, {}
            self._batch += bool(self._writing)
        batch, number, now = self._writing, self._batch, self._clock()
        month, at = month_of(now), self._ticks()
        asked = [key_id for key_id, spent in self._months.items() if at - spent.read_at >= FLUSH_S]
        try:
            sums = await self._store.run(
                lambda c: _written(c, batch, self._node, number, now, month, asked), "count usage"
            )
        except Exception as error:  # an error must not reach the turn, and the counts must not be lost
            if not self._failing:
                log.warning("usage could not be written; it is kept and written later: %s", error)
            self._failing = True
            await self._read_first(month, at)
            return
        if self._failing:
            log.warning("usage can be written again")
        self._failing, self._writing = False, {}
        for key_id, (requests, tokens) in sums.items():
            self._months[key_id] = self._with_counted(key_id, Spent(month, requests, tokens, at))

    async def _read_first(self, month: int, at: float) -> None:
        """Reads the sums of keys whose sums were never read. Works even if the store's disk is full."""
        asked = [key_id for key_id, spent in self._months.items() if spent.read_at == NEVER]
        if self._store is None or not asked or not self._writing:
            return
        try:
            sums = await self._store.run(
                lambda c: {key_id: _month(c, key_id, month) for key_id in asked}, "read usage"
            )
        except Exception:  # the store is unreachable
            return
        for key_id, (requests, tokens) in sums.items():
            self._months[key_id] = self._with_counted(key_id, Spent(month, requests, tokens, at))

    def _with_counted(self, key_id: str, spent: Spent) -> Spent:
        """Returns sums from the store plus the counts of this node that are not in the store yet."""
        for (key, hour, _), counts in (*self._writing.items(), *self._counted.items()):
            if key == key_id and hour >= spent.month:
                spent.requests += counts[0]
                spent.tokens += counts[2] + counts[4]
        return spent

    async def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._store is None:
            return
        try:
            async with asyncio.timeout(CLOSE_S):
                while (self._flushing is not None or self._writing or self._counted) and not (
                    self._failing and self._flushing is None
                ):
                    await self.flush()
        except TimeoutError:
            pass
        if self._writing or self._counted:
            log.error(
                "the usage of the last moments could not be written: %d rows are lost",
                len(self._writing) + len(self._counted),
            )

    # --- budgets ---

    async def month(self, key_id: str) -> Spent:
        """Returns the key's usage of this month.

        Raises an error if the usage was never read and cannot be read now.
        """
        spent = self._months.get(key_id)
        if spent is None:
            spent = self._months[key_id] = Spent(month_of(self._clock()))
        if self._store is not None and self._ticks() - spent.read_at > STALE_S:
            if spent.read_at == NEVER:
                spent = await self._first_month(key_id)
            elif not self._failing:
                await asyncio.wait({self._flush()}, timeout=WAIT_S)
                spent = self._months[key_id]
        self._turn_month(spent, self._clock())
        return spent

    def known_month(self, key_id: str) -> Spent:
        """Returns the key's usage of this month. It was already read, so this does not wait."""
        spent = self._months[key_id]
        self._turn_month(spent, self._clock())
        return spent

    def held(self, key_id: str) -> tuple[int, int]:
        """Returns the requests and tokens that running turns of this key reserve on this node."""
        return self._held.get(key_id, (0, 0))

    def hold(self, key_id: str, requests: int, tokens: int) -> Hold:
        """Reserves a part of the key's budget. `observe` releases this part when the turn ends."""
        held = self.held(key_id)
        self._held[key_id] = (held[0] + requests, held[1] + tokens)
        return Hold(key_id, requests, tokens)

    def release(self, hold: Hold) -> None:
        held = self.held(hold.key_id)
        left = (held[0] - hold.requests, held[1] - hold.tokens)
        if any(left):
            self._held[hold.key_id] = left
        else:
            self._held.pop(hold.key_id, None)

    async def _first_month(self, key_id: str) -> Spent:
        for _ in range(2):  # a write that is already running may not read this key
            done, _pending = await asyncio.wait({self._flush()}, timeout=WAIT_S)
            spent = self._months[key_id]
            if spent.read_at > NEVER:
                return spent
            if not done:
                break
        message = "The gateway's store cannot be reached, and what this API key has used of its budget "
        message += "is not known yet; try again in a moment."
        raise ToolwireError("overloaded", message, retry_after_s=1)

    def _turn_month(self, spent: Spent, now: float) -> None:
        month = month_of(now)
        if spent.month != month:
            spent.month, spent.requests, spent.tokens = month, 0, 0

    # --- queries ---

    async def ask(self, question: UsageQuery) -> list[tuple[int, tuple[str, ...], Counts]]:
        """Returns the sums by bucket and group, in order, without empty buckets.

        The sums include the counts of this node that are not in the store yet.
        """
        await self.flush()
        out: dict[tuple[int, tuple[str, ...]], Counts] = {}
        if self._store is not None:
            for bucket, group, counts in await self._store.run(lambda c: _sums(c, question), "read usage"):
                out[bucket, group] = counts
        for row, counts in (*self._writing.items(), *self._counted.items()):
            if _fits(row, question):
                named = {"key_id": row[0], "model": row[2]}
                place = (
                    row[1] // question.width * question.width,
                    tuple(named[column] for column in question.group_by),
                )
                out[place] = [a + b for a, b in zip(out.get(place, [0] * len(COUNTS)), counts, strict=True)]
        return [(bucket, group, counts) for (bucket, group), counts in sorted(out.items())]


def month_of(now: float) -> int:
    """Returns the Unix time at which the month that contains `now` begins (UTC)."""
    return int(
        datetime.fromtimestamp(now, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0).timestamp()
    )


def next_month(now: float) -> int:
    return month_of(month_of(now) + 32 * DAY)


def _fits(row: Row, question: UsageQuery) -> bool:
    key_id, hour, model = row
    wanted = (question.keys is None or key_id in question.keys) and (
        question.models is None or model in question.models
    )
    return wanted and question.start <= hour < question.end


# --- rows ---

_COLUMNS = ("key_id", "hour", "model", *COUNTS)
_SUMS = ", ".join(f"{name} = usage.{name} + excluded.{name}" for name in COUNTS)
_ADD = (
    f"INSERT INTO usage ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))}) "
    f"ON CONFLICT (key_id, hour, model) DO UPDATE SET {_SUMS}"
)
_NUMBER = (
    "INSERT INTO usage_batches (node, batch, written_at) VALUES (?, ?, ?) ON CONFLICT (node) DO UPDATE "
    "SET batch = excluded.batch, written_at = excluded.written_at WHERE usage_batches.batch < excluded.batch"
)


def _written(
    connection: Any,
    batch: dict[Row, Counts],
    node: str,
    number: int,
    now: float,
    month: int,
    asked: Iterable[str],
) -> dict[str, tuple[int, int]]:
    with connection.transaction():
        if batch and connection.execute(_NUMBER, (node, number, now)).rowcount == 1:
            connection.executemany(
                _ADD, [(*row, *counts) for row, counts in sorted(batch.items())]
            )  # sorted, so that two nodes never wait for each other
            connection.execute("DELETE FROM usage_batches WHERE written_at < ?", (now - BATCHES_S,))
    return {key_id: _month(connection, key_id, month) for key_id in asked}


def _month(connection: Any, key_id: str, month: int) -> tuple[int, int]:
    sums = "COALESCE(SUM(requests), 0), COALESCE(SUM(input_tokens + output_tokens), 0)"
    sql = f"SELECT {sums} FROM usage WHERE key_id = ? AND hour >= ?"
    requests, tokens = connection.execute(sql, (key_id, month)).fetchone()
    return int(requests), int(tokens)


def _sums(connection: Any, question: UsageQuery) -> list[tuple[int, tuple[str, ...], Counts]]:
    where, values = ["hour >= ?", "hour < ?"], [question.start, question.end]
    for column, only in (("key_id", question.keys), ("model", question.models)):
        if only is not None:
            where.append(f"{column} IN ({', '.join('?' * len(only))})" if only else "1 = 0")
            values += only  # type: ignore[arg-type]
    groups: Sequence[str] = question.group_by
    columns = ", ".join((f"hour - hour % {int(question.width)}", *groups))
    order = ", ".join(str(place) for place in range(1, len(groups) + 2))
    sums = ", ".join(f"SUM({name})" for name in COUNTS)
    sql = f"SELECT {columns}, {sums} FROM usage WHERE {' AND '.join(where)} GROUP BY {order} ORDER BY {order}"
    size = 1 + len(groups)
    return [
        (int(row[0]), tuple(row[1:size]), [int(value) for value in row[size:]])
        for row in connection.execute(sql, values).fetchall()
    ]
