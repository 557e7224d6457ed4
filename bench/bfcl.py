"""Measures the embedded models: calls on BFCL's cases, speed, memory, and tasks in a vault.

    python -m bench.bfcl [--per 5] [--seed 1] [--model NAME=GGUF] [--keep] [--json FILE]

Measures the models of `toolwire local pull` that are on this machine. Each part runs in its own process, so
that the measured memory is that of one model. These sides are compared, with the same model file, the same
cases, temperature 0 and the same token limit:

- `auto` and `required`: chat completions through Toolwire's gateway, with its `local` backend
- `template`: the tools in the model's own chat template, decoded freely, read by Toolwire's scanner
- `llama.cpp` and `llama.cpp required`: llama.cpp's own HTTP server, which has the tools in its API
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench import vault_tasks
from bench.bfcl_cases import NO_CALL, Call, Case, read, sample, wheel
from bench.bfcl_tables import CUT, CUT_PARALLEL, HELD, TOOLS, Measured, report
from toolwire.backends.local import LocalBackend, LocalOptions
from toolwire.backends.local.model import key_of, llama_cpp, parameters
from toolwire.backends.local.pull import MODELS
from toolwire.core.errors import ToolwireError
from toolwire.core.events import CallArgs, CallBegin, Failure, Text, Usage
from toolwire.emulate.scanner import parse
from toolwire.gateway.pipeline import Caller, Gateway
from toolwire.settings.types import Settings

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "bench" / "work"
WITHOUT_TEMPLATE = ("smollm2-135m",)
"""Models whose own chat template has no tools."""


@dataclass(slots=True)
class Answer:
    """An answer of a model.

    A pair of times has the seconds by the clock since the request, and the processor time in seconds. The
    processor time does not depend on what else runs on the machine.
    """

    calls: list[Call] = field(default_factory=list)
    text: str = ""
    first: tuple[float, float] | None = None
    """When the first call began."""
    began: tuple[float, float] = (0.0, 0.0)
    """When the first token of the answer arrived."""
    seconds: float = 0.0
    work: float = 0.0
    """The processor time of the whole answer; 0 if it was not measured."""
    tokens: tuple[int, int] = (0, 0)
    """The tokens of the prompt and of the answer."""
    problem: str = ""


def request(case: Case, **more: Any) -> dict[str, Any]:
    body = {"messages": list(case.messages), "tools": list(case.tools), "temperature": 0, "seed": 1}
    return {"model": "local", "max_tokens": cut(case), **body, **more}


def cut(case: Case) -> int:
    return CUT_PARALLEL if len(case.expected) > 1 else CUT


# --- through Toolwire ---


async def ask(gateway: Gateway, body: dict[str, Any]) -> Answer:
    answer, arguments, names = Answer(), dict[int, str](), dict[int, str]()
    started, worked = time.perf_counter(), time.process_time()
    try:
        async with aclosing(gateway.events(json.dumps({**body, "stream": True}).encode(), Caller())) as run:
            async for batch in run:
                now = time.perf_counter() - started, time.process_time() - worked
                for event in batch:
                    if isinstance(event, Text | CallBegin) and answer.began == (0, 0):
                        answer.began = now
                    if isinstance(event, Text):
                        answer.text += event.text
                    elif isinstance(event, CallBegin):
                        names[event.index] = event.name
                        answer.first = answer.first or now
                    elif isinstance(event, CallArgs):
                        arguments[event.index] = arguments.get(event.index, "") + event.delta
                    elif isinstance(event, Usage):
                        answer.tokens = event.input_tokens, event.output_tokens
                    elif isinstance(event, Failure):
                        answer.problem = event.message
    except ToolwireError as error:
        answer.problem = error.failure.message
    answer.seconds, answer.work = time.perf_counter() - started, time.process_time() - worked
    answer.calls = [call_of(name, arguments.get(at, "")) for at, name in names.items()]
    return answer


def call_of(name: str, arguments: str) -> Call:
    """Returns a call. Arguments that are not a JSON object, such as truncated arguments, fit no case."""
    try:
        value = json.loads(arguments)
    except ValueError:
        value = None
    return name, value if isinstance(value, dict) else {"not JSON": arguments}


# --- llama.cpp's own server ---


class LlamaServer:
    """llama.cpp's HTTP server on loopback, with the model's own template (`--jinja`)."""

    def __init__(self, options: LocalOptions) -> None:
        llama = llama_cpp()
        params = parameters(llama, key_of(options))
        params.use_jinja, params.port = True, 0
        self._server = llama.Server(params)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        url = f"{self._server.listening_address}{path}"
        sent = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(sent, timeout=600) as reply:
                read: dict[str, Any] = json.load(reply)
        except urllib.error.HTTPError as error:
            return {"error": error.read().decode(errors="replace")[:300]}
        return read

    def chat(self, case: Case, **more: Any) -> Answer:
        """Asks with the tools of llama.cpp's own API."""
        started = time.perf_counter()
        reply = self.post("/v1/chat/completions", request(case, **more))
        seconds = time.perf_counter() - started
        if "choices" not in reply:
            return Answer(seconds=seconds, problem=str(reply.get("error"))[:300])
        message = reply["choices"][0]["message"]
        functions = [call["function"] for call in message.get("tool_calls") or ()]
        calls = [call_of(one["name"], one["arguments"]) for one in functions]
        usage = reply["usage"]
        tokens = usage["prompt_tokens"], usage["completion_tokens"]
        return Answer(calls, message.get("content") or "", seconds=seconds, tokens=tokens)

    def free(self, case: Case) -> Answer:
        """Fills in the model's own template, decodes freely and reads the calls with Toolwire's scanner."""
        started = time.perf_counter()
        filled = self.post("/apply-template", request(case))
        if "prompt" not in filled:
            return Answer(problem=str(filled.get("error"))[:300])
        sampling = {"temperature": 0, "seed": 1, "n_predict": cut(case)}
        reply = self.post("/completion", {"prompt": filled["prompt"], **sampling})
        seconds = time.perf_counter() - started
        if "content" not in reply:
            return Answer(seconds=seconds, problem=str(reply.get("error"))[:300])
        tokens = reply["tokens_evaluated"], reply["tokens_predicted"]
        declared = [tool["function"] for tool in case.tools]
        calls = calls_in(reply["content"], declared)
        return Answer(calls, reply["content"], seconds=seconds, tokens=tokens)


def calls_in(text: str, tools: Sequence[dict[str, Any]]) -> list[Call]:
    """Returns the calls in a text of the hermes dialect, or in fenced or bare JSON."""
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    for event in parse(text, tools, ("hermes", "fenced", "bare")):
        if isinstance(event, CallBegin):
            names[event.index] = event.name
        elif isinstance(event, CallArgs):
            arguments[event.index] = arguments.get(event.index, "") + event.delta
    return [call_of(name, arguments.get(at, "")) for at, name in names.items()]


# --- one process: one model, one side ---


def peak_memory() -> int:
    """Returns the peak memory of this process in bytes, including the mapped model file."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


@asynccontextmanager
async def opened(gguf: str) -> AsyncIterator[Gateway]:
    backend = LocalBackend("local", LocalOptions(gguf=gguf))
    gateway = Gateway(Settings(), backends={"local": backend}, store=None)
    try:
        yield gateway
    finally:
        await gateway.close()


class Part:
    """The results of one part, by kind and id. After each result, they are written into a file."""

    def __init__(self, file: Path, keep: bool) -> None:
        self._file = file
        self.data: dict[str, dict[str, Any]] = {}
        if keep and file.is_file():
            self.data = json.loads(file.read_text())

    def missing(self, kind: str, id: str) -> bool:
        return id not in self.data.get(kind, {})

    def add(self, kind: str, id: str, result: Mapping[str, Any]) -> None:
        self.data.setdefault(kind, {})[id] = result
        self._file.write_text(json.dumps(self.data, indent=1) + "\n")
        word = "" if "right" not in result else "right" if result["right"] else "wrong"
        print(f"{kind:18} {id:60.60} {result['seconds']:7.1f} s {word}", file=sys.stderr, flush=True)


async def by_toolwire(part: Part, cases: Sequence[Case], gguf: str) -> None:
    async with opened(gguf) as gateway:
        for case in cases:
            for side in ("auto", "required"):
                if (side == "auto" or case.category != NO_CALL) and part.missing(side, case.id):
                    answer = await ask(gateway, request(case, tool_choice=side))
                    part.add(side, case.id, graded(case, answer))


async def in_vault(part: Part, gguf: str) -> None:
    async with opened(gguf) as gateway:
        for task in vault_tasks.TASKS:
            if part.missing("tasks", task.asked):
                part.add("tasks", task.asked, asdict(await vault_tasks.run(gateway, "local", task)))


async def resources(part: Part, pool: Sequence[Case], gguf: str) -> None:
    if part.missing("resources", ""):
        started = time.perf_counter()
        async with opened(gguf) as gateway:
            rates = await speed(gateway, pool)
        part.add(
            "resources", "", {**rates, "memory": peak_memory(), "seconds": time.perf_counter() - started}
        )


async def speed(gateway: Gateway, pool: Sequence[Case]) -> dict[str, Any]:
    """Measures tokens per second, and the time to the first call with 1, 5 and 20 tools.

    The question belongs to the first tool. Each number of tools is measured twice: with a new prompt, and
    with another question about the same tools, so that llama.cpp has the beginning of the prompt in its
    cache. Rates are pairs, like the times of an `Answer`: tokens per second by the clock, and tokens per
    second of processor time.
    """
    asked = [{"role": "user", "content": "Tell me a long story about the sea."}]
    await ask(gateway, {"model": "local", "messages": asked, "max_tokens": 8})  # loads the model
    story = await ask(gateway, {"model": "local", "messages": asked, "max_tokens": 60, "temperature": 0})
    spent = story.seconds - story.began[0], story.work - story.began[1]
    rates: dict[str, Any] = {"writing": [(story.tokens[1] - 1) / one for one in spent]}
    question = pool[0]
    tools = {tool["function"]["name"]: tool for case in pool for tool in case.tools}
    calls: dict[int, list[tuple[float, float] | None]] = {}
    for number in TOOLS:
        answers = []
        for word in ("Please help me.", "I have a question."):
            messages = [{"role": "system", "content": f"You have {number} tools."}]
            messages.append({"role": "user", "content": f"{word} {question.messages[-1]['content']}"})
            offered = list(tools.values())[:number]
            body = request(question, messages=messages, tools=offered, tool_choice="required", max_tokens=48)
            answers.append(await ask(gateway, body))
        calls[number] = [answer.first for answer in answers]
        rates["reading"] = [answers[0].tokens[0] / one for one in answers[0].first or ()]
    return {**rates, "first_call": calls}


def by_llama(part: Part, cases: Sequence[Case], gguf: str, template: bool) -> None:
    seen: dict[str, int] = {}
    wanted: list[tuple[str, Case]] = []
    for case in cases:
        seen[case.category] = seen.get(case.category, 0) + 1
        held = case.category != NO_CALL and seen[case.category] <= HELD
        sides = [*(["template"] if template else []), "llama.cpp", *(["llama.cpp required"] if held else [])]
        wanted += [(side, case) for side in sides if part.missing(side, case.id)]
    if not wanted:
        return  # a server that got no request cannot be closed
    server = LlamaServer(LocalOptions(gguf=gguf))
    for side, case in wanted:
        choice = "required" if side.endswith("required") else "auto"
        answer = server.free(case) if side == "template" else server.chat(case, tool_choice=choice)
        part.add(side, case.id, graded(case, answer))


def graded(case: Case, answer: Answer) -> dict[str, Any]:
    right = not answer.problem and case.right(answer.calls)
    return {"category": case.category, "right": right, **asdict(answer)}


# --- all models ---

PARTS = ("resources", "toolwire", "llama", "vault")


def measure(name: str, part: str, left: Part, gguf: str, per: int, seed: int) -> None:
    """Measures one part of one model in this process."""
    every = read(wheel(WORK))
    cases = sample(every, per, seed)
    if part == "resources":
        pool = sample({"simple": every["simple"]}, 2 * max(TOOLS), seed)
        asyncio.run(resources(left, pool, gguf))
    elif part == "toolwire":
        asyncio.run(by_toolwire(left, cases, gguf))
    elif part == "llama":
        by_llama(left, cases, gguf, name not in WITHOUT_TEMPLATE)
    else:
        asyncio.run(in_vault(left, gguf))


def collect(models: Mapping[str, str], per: int, seed: int, keep: bool) -> Measured:
    """Measures every part of every model. Each part runs in its own process."""
    measured: Measured = {}
    for name, gguf in models.items():
        measured[name] = {}
        for part in PARTS:
            left = WORK / f"bfcl-{name}-{part}-{seed}.json"
            command = [sys.executable, "-m", "bench.bfcl", "--part", part, "--model", f"{name}={gguf}"]
            command += ["--per", str(per), "--seed", str(seed), "--json", str(left)]
            subprocess.run([*command, *(["--keep"] if keep else [])], cwd=ROOT, check=True)
            measured[name] |= json.loads(left.read_text())
    return measured


def here() -> dict[str, str]:
    """Returns the known models whose files are on this machine, and their files."""
    files = {name: known.path for name, known in MODELS.items()}
    return {name: str(file) for name, file in files.items() if file.is_file()}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.bfcl", description="Measures embedded models.")
    parser.add_argument("--per", type=int, default=5, help="cases of each category")
    parser.add_argument("--seed", type=int, default=1, help="decides which cases are drawn")
    parser.add_argument("--model", action="append", metavar="NAME=GGUF", help="instead of the pulled models")
    parser.add_argument("--keep", action="store_true", help="measure only what was not measured before")
    parser.add_argument("--part", choices=PARTS, help="one part of one model, in this process")
    parser.add_argument("--json", metavar="FILE", help="write the tables as JSON")
    arguments = parser.parse_args(argv)
    models = dict(one.split("=", 1) for one in arguments.model or ()) or here()
    chosen = arguments.per, arguments.seed
    if arguments.part:
        ((name, gguf),) = models.items()
        left = Part(Path(arguments.json), arguments.keep)
        measure(name, arguments.part, left, gguf, *chosen)
        return 0
    result = report(collect(models, *chosen, arguments.keep), *chosen)
    print(result["figures"])
    for table in result["tables"]:
        print("\n".join(" | ".join(row) for row in table), end="\n\n")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
