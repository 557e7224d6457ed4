"""A call in progress: a change wakes the waiting request at once, not with the next progress report."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from toolwire.surfaces.mcp.calls import AskChannels, McpCall
from toolwire.tools.contract import Asking, Decision, Preview, Ran, ToolCall
from toolwire.tools.executor import Toolbox

ASKING = Asking("session", "client", "mcp")
LONG_S = 600.0
SOON_S = 20.0
"""Far less than `LONG_S`: news that comes within it was not waited out."""


class Slow:
    """A tool that runs until `go` is set."""

    name, title, purpose, description, effect = "slow", "Slow", "Takes its time.", "Slow.", "read"
    parameters: ClassVar[dict[str, Any]] = {"type": "object"}

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def preview(self, arguments: Any) -> Preview:
        return Preview(summary="Waits.")

    async def run(self, arguments: Any, picked: Any, shown: Preview) -> Ran:
        await self.go.wait()
        return Ran("done")

    def share(self, ran: Ran, picked: Any) -> Any:
        return ran.value


def begun(served: Any, tool: Slow, *, form: bool) -> McpCall:
    toolbox = Toolbox([tool])  # type: ignore[list-item]
    return McpCall(
        toolbox,
        served.approvals,
        ToolCall("call_1", "slow", "{}"),
        ASKING,
        AskChannels(form=form, inbox=True),
    )


async def ended(call: McpCall) -> None:
    call.task.cancel()
    await asyncio.gather(call.task, return_exceptions=True)


async def test_news_returns_at_a_question_for_a_form(serve: Any) -> None:
    call = begun(serve(), Slow(), form=True)
    async with asyncio.timeout(SOON_S):
        while call.open is None:
            await call.news(LONG_S)
    await ended(call)


async def test_news_returns_at_a_question_for_the_inbox(serve: Any) -> None:
    call = begun(serve(), Slow(), form=False)
    async with asyncio.timeout(SOON_S):
        while call.left is None:
            await call.news(LONG_S)
    await ended(call)


async def test_news_returns_when_a_form_is_answered_and_the_call_still_runs(serve: Any) -> None:
    tool = Slow()
    call = begun(serve(), tool, form=True)
    async with asyncio.timeout(SOON_S):
        while call.open is None:
            await call.news(LONG_S)
        waiting = asyncio.ensure_future(call.news(LONG_S))
        await asyncio.sleep(0)  # it waits before there is an answer
        call.answer(call.open.id, Decision(True))
        await waiting
        assert call.open is None and not call.task.done()
        tool.go.set()
        assert (await call.task).status == "done"


async def test_news_returns_when_another_surface_decides_and_the_call_still_runs(serve: Any) -> None:
    served, tool = serve(), Slow()
    call = begun(served, tool, form=True)
    async with asyncio.timeout(SOON_S):
        while call.open is None:
            await call.news(LONG_S)
        waiting = asyncio.ensure_future(call.news(LONG_S))
        await asyncio.sleep(0)
        await served.approvals.decide(call.open, Decision(True), by="shell")
        await waiting
        assert call.open is None and not call.task.done()
        tool.go.set()
        assert (await call.task).status == "done"
