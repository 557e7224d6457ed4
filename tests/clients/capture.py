"""Records what some real clients send in their tool loops, for tests/wire/test_client_shapes.py.

    python tests/clients/capture.py

A relay in front of the gateway records each request and, on Responses, the items of the answer, because the
server stores them. The model is that of simple.py, so each loop has text next to its calls. Ids are numbered.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
from typing import Any

from doubles.relay import DamagingRelay, Passing
from matrix import BY_NAME, CLIENTS, VERSIONS, Case, Client, installed, run
from toolwire.conform.judge import fold

CAPTURED = ("haystack", "semantic-kernel", "tanstack-ai")
FOLDER = CLIENTS.parent / "wire" / "captures" / "clients"
PLANS = {"chat": ("simple_spoken_parallel",), "responses": ("simple_spoken_parallel", "simple_twice")}
_ID = re.compile(r"\b(call|fc|msg|resp|rs)_[0-9a-f]{16,}\b")


def turn(passing: Passing) -> dict[str, Any]:
    if passing.path != "/responses":
        return {"request": passing.asked}
    answer = passing.json or fold(passing.raw, "responses")
    return {"request": passing.asked, "id": answer["id"], "output": answer["output"]}


def numbered(turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    known: dict[str, str] = {}
    renamed: list[dict[str, Any]] = json.loads(
        _ID.sub(lambda id: known.setdefault(id[0], f"{id[1]}_{len(known)}"), json.dumps(turns))
    )
    return renamed


async def loops(client: Client, url: str) -> list[dict[str, Any]]:
    out = []
    async with DamagingRelay(url.removesuffix("/v1")) as relay:
        for api, ways in client.apis.items():
            for stream in ways:
                case = Case(client.name, api, stream, "native")
                for plan in PLANS[case.wire]:
                    passed: list[Passing] = []
                    relay.damage = passed.append
                    jobs = [case.job(plan)]
                    (result,) = await asyncio.to_thread(
                        run, client, relay.base_url, jobs, installed(), CLIENTS
                    )
                    assert result["error"] is None, (case, result)
                    out.append(
                        {
                            "api": api,
                            "wire": case.wire,
                            "stream": stream,
                            "plan": plan,
                            "turns": numbered([turn(passing) for passing in passed]),
                        }
                    )
    return out


def written(client: Client, found: list[dict[str, Any]]) -> str:
    """One line per request."""
    versions = {package: VERSIONS[client.kind][package] for package in client.packages}
    heads = [json.dumps({key: value for key, value in loop.items() if key != "turns"})[:-1] for loop in found]
    bodies = [
        ",\n".join("  " + json.dumps(one, ensure_ascii=False) for one in loop["turns"]) for loop in found
    ]
    text = ",\n".join(f'{head}, "turns": [\n{body}\n]}}' for head, body in zip(heads, bodies, strict=True))
    return f'{{"versions": {json.dumps(versions)}, "loops": [\n{text}\n]}}\n'


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        command = [sys.executable, str(CLIENTS / "serve.py")]
        environment = {**os.environ, "HOME": home}
        serving = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=home, env=environment
        )
        try:
            assert serving.stdout is not None
            url = serving.stdout.readline().removeprefix("listening on ").strip()
            FOLDER.mkdir(exist_ok=True)
            for name in CAPTURED:
                found = asyncio.run(loops(BY_NAME[name], url))
                (FOLDER / f"{name}.json").write_text(written(BY_NAME[name], found), "utf-8")
        finally:
            serving.terminate()
            serving.wait()


if __name__ == "__main__":
    main()
