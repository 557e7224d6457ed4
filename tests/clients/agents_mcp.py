"""openai-agents with a `HostedMCPTool`: prints as JSON what became of each run with each gateway.

    agents_mcp.py BASE_URL,KEY …

A run is approved by the callback, declined by it, or interrupted and continued; streamed or not; with the
whole input sent again, or with `previous_response_id`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from agents import Agent, HostedMCPTool, OpenAIResponsesModel, Runner, set_tracing_disabled
from openai import AsyncOpenAI

PROMPT = "Read it."
TOOL: Any = {"type": "mcp", "server_label": "files", "require_approval": "always"}


def outcome(result: Any, **more: Any) -> dict[str, Any]:
    return {"items": [item.type for item in result.new_items], "text": result.final_output, **more}


class Client:
    def __init__(self, base_url: str, key: str) -> None:
        client = AsyncOpenAI(base_url=base_url, api_key=key, max_retries=0, timeout=20)
        self._model = OpenAIResponsesModel("m", client)

    def agent(self, decision: dict[str, Any] | None) -> Any:
        callback = None if decision is None else (lambda request: decision)
        tool = HostedMCPTool(tool_config=TOOL, on_approval_request=callback)
        return Agent(name="a", model=self._model, tools=[tool])

    async def answered(self, decision: dict[str, Any], **more: Any) -> dict[str, Any]:
        return outcome(await Runner.run(self.agent(decision), PROMPT, **more))

    async def streamed(self) -> dict[str, Any]:
        result = Runner.run_streamed(self.agent({"approve": True}), PROMPT)
        events = [
            event.data.type async for event in result.stream_events() if event.type == "raw_response_event"
        ]
        return outcome(result, events=events)

    async def interrupted(self, approve: bool) -> dict[str, Any]:
        agent = self.agent(None)
        first = await Runner.run(agent, PROMPT)
        asked = [[one.name, one.arguments] for one in first.interruptions]
        state = first.to_state()
        for one in first.interruptions:
            (state.approve if approve else state.reject)(one)
        return outcome(await Runner.run(agent, state), asked=asked)

    async def goes_on(self) -> dict[str, Any]:
        agent = self.agent({"approve": True})
        first = await Runner.run(agent, PROMPT)
        again = await Runner.run(agent, [*first.to_input_list(), {"role": "user", "content": "And now?"}])
        return outcome(again)


async def runs(gateway: str) -> dict[str, Any]:
    client = Client(*gateway.split(","))
    yes, no = {"approve": True}, {"approve": False, "reason": "not now"}
    return {
        "yes": await client.answered(yes),
        "no": await client.answered(no),
        "previous": await client.answered(yes, auto_previous_response_id=True),
        "streamed": await client.streamed(),
        "interrupted yes": await client.interrupted(True),
        "interrupted no": await client.interrupted(False),
        "goes on": await client.goes_on(),
    }


async def main(gateways: list[str]) -> None:
    print(json.dumps([await runs(one) for one in gateways]))


if __name__ == "__main__":
    set_tracing_disabled(True)
    asyncio.run(main(sys.argv[1:]))
