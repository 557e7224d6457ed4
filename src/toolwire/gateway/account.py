"""What a turn answered and used, as it becomes known on its way: what its headers, its last line and its summary tell."""

from __future__ import annotations

from functools import lru_cache
from time import perf_counter

from toolwire.access.limits import Ticket
from toolwire.backends.base import Batch
from toolwire.core.events import CallBegin, Finish, Usage
from toolwire.core.policy import Policy
from toolwire.observe.tracing import Contents

Headers = tuple[tuple[bytes, bytes], ...]


class Account:
    """One turn's. `saw` is told every batch that goes out; `policies` are those that it went through, one for each choice."""

    __slots__ = ("_started", "_usages", "call_ids", "call_times", "contents", "finish", "policies", "ticket")

    def __init__(self, started: float, contents: Contents | None) -> None:
        self._started = started
        self._usages: dict[int, Usage] = {}
        self.contents = contents
        """What was said, where somebody wants to know it."""
        self.ticket: Ticket | None = None
        """What the turn took of its key's limits; None where the key has none."""
        self.policies: dict[int, Policy] = {}
        self.call_ids: list[str] = []
        self.call_times: list[float] = []
        self.finish: str | None = None

    @property
    def wants_text(self) -> bool:
        """Whether anything here is made of the text itself."""
        return self.ticket is not None or self.contents is not None

    def saw(self, batch: Batch, choice: int) -> None:
        if self.ticket is not None:
            self.ticket.saw(batch)
        if self.contents is not None:
            self.contents.saw(batch, choice)
        for event in batch:
            kind = type(event)
            if kind is CallBegin:
                self.call_ids.append(event.id or "")  # type: ignore[union-attr]
                self.call_times.append(perf_counter() - self._started)
            elif kind is Finish:
                self.finish = event.reason  # type: ignore[union-attr]
            elif kind is Usage:
                self._usages[choice] = event  # type: ignore[assignment]

    def settled(self, ran: bool, answered: bool) -> Usage:
        """The usage of all choices together: they share one input, and each has its own output.

        Settles the key's limits. A turn that `ran` is charged an estimate where its backend did not count, and one
        that was not `answered` gives its request back to the key's budget.
        """
        usage, *others = self._usages.values() or (Usage(0, 0),)
        for one in others:
            output, reasoning = (
                usage.output_tokens + one.output_tokens,
                usage.reasoning_tokens + one.reasoning_tokens,
            )
            usage = Usage(
                max(usage.input_tokens, one.input_tokens),
                output,
                max(usage.cached_tokens, one.cached_tokens),
                reasoning,
            )
        return usage if self.ticket is None else self.ticket.settle(usage, ran, answered)

    def called(self) -> tuple[int, bool, str]:
        """How many calls went out, whether any was left out, and by which rule a run ends behind its calls."""
        if len(self.policies) == 1:
            return self.policies[0].called
        shown = [policy.called for policy in self.policies.values()]
        return (
            sum(count for count, _, _ in shown),
            any(cut for _, cut, _ in shown),
            shown[0][2] if shown else "off",
        )

    @property
    def call_names(self) -> tuple[str, ...]:
        return tuple(name for policy in self.policies.values() for name in policy.names)

    @property
    def dropped(self) -> dict[str, int]:
        """How often policy dropped something, by its kind."""
        out: dict[str, int] = {}
        for policy in self.policies.values():
            for kind, count in policy.dropped.items():
                out[kind] = out.get(kind, 0) + count
        return out

    def comment(self) -> str:
        """The last line of a stream tells of its calls, too late for headers."""
        count, truncated, mode = self.called()
        return f'{{"tool_call_count":{count},"tool_call_truncated":{"true" if truncated else "false"},"stop_after_tools_mode":"{mode}"}}'

    def headers(self) -> Headers:
        """Those that tell of an answer's calls."""
        return _headers(*self.called())


@lru_cache(64)
def _headers(count: int, truncated: bool, mode: str) -> Headers:
    """Under our own name, and under those that other proxies' clients know."""
    number, cut, stop = str(count).encode(), b"true" if truncated else b"false", mode.encode()
    return (
        (b"x-toolwire-tools", b"count=%b; truncated=%b; stop_after=%b" % (number, cut, stop)),
        (b"x-codex-tool-call-count", number),
        (b"x-codex-tool-call-truncated", cut),
        (b"x-codex-stop-after-tools-mode", stop),
    )
