"""An answer that Toolwire ended, because it repeated itself: cut on the wire, and reported as such."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from doubles.judges import Judge, same
from toolwire.backends.base import Batch
from toolwire.core.events import Finish, Text, Usage
from toolwire.core.turn import Api, Turn
from toolwire.gateway.pipeline import Gateway
from toolwire.settings.types import Settings
from toolwire.testing import ScriptedBackend, ScriptedOptions
from toolwire.tools.contract import Asking
from toolwire.tools.loop import REPEATED, Conversation, Ended, GatewayModel

APIS: tuple[Api, ...] = ("chat", "responses", "messages")


class Looping(ScriptedBackend):
    async def run(self, turn: Turn) -> AsyncGenerator[Batch, None]:
        yield [Text("Again. ")]
        await asyncio.sleep(0)
        yield [Text("Again. "), Usage(3, 2), Finish("length", repeats=True)]


def question(api: Api) -> dict[str, Any]:
    body: dict[str, Any] = {
        "input" if api == "responses" else "messages": [{"role": "user", "content": "Hi"}]
    }
    return {**body, "max_tokens": 9} if api == "messages" else body


@pytest.mark.parametrize("api", APIS)
async def test_the_report_of_a_body_and_the_last_comment_of_a_stream_say_so(
    table: Any, judge: Judge, api: Api
) -> None:
    table.serve(Looping("m", ScriptedOptions()))
    whole = await table.answer(api, {**question(api), "stream": False})
    body = json.loads(whole.body)
    if api != "messages":
        judge.body(body, api)
    assert b"answer=repetition" in dict(whole.headers)[b"x-toolwire-report"].split(b"; ")
    assert {
        "chat": lambda: body["choices"][0]["finish_reason"] == "length",
        "responses": lambda: body["incomplete_details"] == {"reason": "max_output_tokens"},
        "messages": lambda: body["stop_reason"] == "max_tokens",
    }[api]()
    streamed = await table.answer(api, {**question(api), "stream": True})
    raw = b"".join([block async for block in streamed.stream])
    if api != "messages":
        judge.stream(raw, api)
        assert same(raw, body, api) == []
    assert raw.count(b'"answer":"repetition"') == 1


@pytest.mark.parametrize("api", APIS)
async def test_an_answer_at_the_token_limit_is_not_called_a_repetition(table: Any, api: Api) -> None:
    table.serve(ScriptedBackend("m", ScriptedOptions(script="say Again.\nfinish length")))
    whole = await table.answer(api, {**question(api), "stream": False})
    assert b"repetition" not in dict(whole.headers)[b"x-toolwire-report"]
    assert b"repetition" not in await table.stream(api, question(api))


@pytest.mark.parametrize(("backend", "words"), [(Looping, REPEATED), (ScriptedBackend, "")])
async def test_a_conversation_knows_why_the_answer_is_cut(backend: Any, words: str) -> None:
    made = backend("m", ScriptedOptions(script="say Again.\nfinish length"))
    gateway = Gateway(Settings(), backends={"m": made})
    conversation = Conversation(GatewayModel(gateway), "m", None, Asking("s", "m", "test"))
    happenings = [one async for one in conversation.turn("Hi")]
    await gateway.close()
    ended = happenings[-1]
    assert isinstance(ended, Ended) and (ended.why, ended.words) == ("length", words)
