"""Continues an answer in which the gateway itself runs calls of MCP servers' tools.

The model runs and makes calls. The gateway runs these calls, which is called a round. Then the model runs
again and gets the results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolwire.core.errors import ToolwireError
from toolwire.core.policy import NO_RULES
from toolwire.gateway.plan import Plan
from toolwire.gateway.rounds import Round, ServedTurn
from toolwire.gateway.served import TakenCalls
from toolwire.gateway.source import RunSource, ServedSource, failed
from toolwire.gateway.stages import Stages

if TYPE_CHECKING:
    from toolwire.gateway.run import Run

Following = tuple[RunSource, Stages]
"""A source of events (a run or a round), and the stages that read it."""


async def go_on(run: Run, source: RunSource, stages: Stages, taken: TakenCalls) -> Following:
    """Continues an answer after `source`. Returns the next `RunSource` with its `Stages`."""
    served = run.served
    assert served is not None
    if isinstance(source, ServedSource):
        following, read_by = await _next_run(run, served, source.round, stages.choice)
    else:
        run.used = taken.used or run.used
        following, read_by = serve(run, served, served.following(taken), stages.choice)
    read_by.begin(parks=following.live is not None)
    return following, read_by


def serve(run: Run, served: ServedTurn, round: Round, choice: int) -> Following:
    """Starts a round: the gateway itself runs the calls of MCP servers.

    The turn gives back its slot in the model's queue during the round.
    """
    assert run.turn is not None and run.answer is not None
    if run.place is not None:
        run.place.leave()
    number = 0 if run.trace is None else run.trace.begin_run("tools", choice)
    source = ServedSource(served.events(round, run.answer.id, run.model), number, round, run.timeouts)
    taken = TakenCalls(holds=round.finish is None and not round.asked)
    shared = (Plan("none", run.turn, NO_RULES), run.answer, run.account, run.ids, choice)
    return source, Stages(*shared, taken=taken, opening=served.opening, part=1)


async def _next_run(run: Run, served: ServedTurn, round: Round, choice: int) -> Following:
    """Starts the model's next run, which gets the results of the round's calls."""
    assert run.turn is not None and run.plan is not None
    plan = run.plan
    try:
        plan = run.planned(served.extended(run.turn, round))
        if run.place is not None:
            run.place = run.place.again()
        refusal = await run.admission() if run.place is not None else None
    except ToolwireError as error:
        refusal = error.failure
    source = run.source(plan, plan.turn, choice) if refusal is None else failed(refusal)
    return source, run.stages(plan, choice)
