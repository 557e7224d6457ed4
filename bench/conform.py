"""`python -m bench.conform`: checks Toolwire and LiteLLM's proxy with `toolwire conform`.

Writes the results into docs/conform.md. Both gateways have the same upstream, Toolwire's demo model. The demo
model itself passes every check, so the gateway causes each failure. LiteLLM is tested twice: configured for
an upstream with both of OpenAI's APIs, where it makes Messages from Responses, and for an upstream with only
chat completions, where it makes Responses and Messages from chat completions.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

from bench.breakages import STREAMS, Tried, table, tried
from bench.process import HERE, WORK, Process, answers, free_port
from bench.targets import ALL_CORES, AUTHORIZATION, KEY
from toolwire.cli.conform import score, summary
from toolwire.conform.checks_shared import Check
from toolwire.conform.engine import CATALOGUE, ConformOutcome, chosen, conform
from toolwire.conform.probe import Probe
from toolwire.core.display import one_line

PAGE = HERE.parent / "docs" / "conform.md"
BEGIN, END = "<!-- results: written by python -m bench.conform -->", "<!-- end of the results -->"
CODEX = HERE.parent / "tests" / "codex" / "new" / "node_modules" / ".bin" / "codex"
MODELS = {"native": "native", "emulated": "emulated", "parked": "parked", "gpt-5.5": "native"}
OPENAI = tuple(check for check in CATALOGUE if check.family != "messages")
MESSAGES = chosen("", "messages")
FROM_CHAT = "hosted_vllm/native"
"""LiteLLM sends Messages for this provider as chat completions."""
LITELLM = WORK / "litellm" / "bin" / "litellm"
ROUTES = {
    "LiteLLM, Responses passed on": ("openai/native", OPENAI),
    "LiteLLM, Responses made from chat": ("deepseek/native", OPENAI),
    "LiteLLM, Messages made from Responses": ("openai/native", MESSAGES),
    "LiteLLM, Messages made from chat": (FROM_CHAT, MESSAGES),
}
WIDTH = 110
SIX = """\
Issue trackers of gateways have many reports of these six faults; the [checks](#messages) name some of them.
For this comparison, the server behind each gateway (the *upstream*) has only chat completions. Each gateway
was tested with 25 such upstreams. One is correct, and 24 deviate from OpenAI's format in one point each, as
real servers do; their names are below the table. *Right* means that the gateway passes the checks with every
upstream. *An error* means that the client gets an error instead of a wrong answer. (For servers that repeat
the arguments in every chunk, Toolwire has the setting `cumulative_arguments`. It was off in these tests.) The
tests cannot show whether `cache_control` reaches Claude."""
START_S = 120.0
SEEN = 150


@dataclass(frozen=True, slots=True)
class Judged:
    title: str
    version: str
    outcome: ConformOutcome


def toolwire(name: str, models: str, env: dict[str, str] | None = None) -> tuple[Process, int]:
    home = WORK / f"conform-{name}"
    home.mkdir(parents=True, exist_ok=True)
    path, port = home / "toolwire.toml", free_port()
    path.write_text(f'[server]\nkeys = ["{KEY}"]\n[store]\nurl = "sqlite:///{home / "conform.db"}"\n{models}')
    command = [sys.executable, "-m", "toolwire", "serve", "--config", str(path), "--port", str(port)]
    return _ready(Process(command, core=ALL_CORES, log=f"conform-{name}", env=env, cwd=home), port)


def before_chat(upstream: int) -> tuple[Process, int]:
    """Starts Toolwire in front of a server with chat completions."""
    model = f'base_url = "http://127.0.0.1:{upstream}/v1"\napi_key = "{KEY}"\nmodel = "native"\n'
    return toolwire("chat", f'[models.native]\nbackend = "openai"\n{model}')


def litellm(upstream: int, model: str) -> tuple[Process, int]:
    parameters = {"model": model, "api_base": f"http://127.0.0.1:{upstream}/v1", "api_key": KEY}
    settings = {"telemetry": False, "drop_params": True, "num_retries": 0, "request_timeout": 600}
    config = {
        "model_list": [{"model_name": "native", "litellm_params": parameters}],
        "litellm_settings": settings,
        "general_settings": {"master_key": KEY, "disable_spend_logs": True},
        "router_settings": {"disable_cooldowns": True},
    }
    path, port = WORK / "conform-litellm.json", free_port()
    path.write_text(json.dumps(config))  # JSON is valid YAML
    command = [
        str(LITELLM),
        "--config",
        str(path),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--telemetry",
        "False",
    ]
    env = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "LITELLM_MODE": "PRODUCTION"}
    return _ready(Process(command, core=ALL_CORES, log="conform-litellm", env=env, cwd=WORK), port)


def _ready(process: Process, port: int) -> tuple[Process, int]:
    try:
        process.wait_until(lambda: answers(port, "/v1/models", AUTHORIZATION), START_S)
    except RuntimeError:
        process.stop()
        raise
    return process, port


async def judged(port: int, model: str, checks: Sequence[Check] = CATALOGUE) -> ConformOutcome:
    async with Probe(f"http://127.0.0.1:{port}/v1", KEY) as probe:
        return await conform(probe, model, checks)


def run() -> list[Judged]:
    models = "".join(
        f'[models."{name}"]\nbackend = "scripted"\ntools = "{tools}"\n' for name, tools in MODELS.items()
    )
    upstream, port = toolwire("upstream", models)
    own, out = version("toolwire"), []
    try:
        for name in ("native", "emulated", "parked"):
            out.append(Judged(f"Toolwire, {name}", own, asyncio.run(judged(port, name))))
        if CODEX.exists():
            provider = (
                f'provider = {{ base_url = "http://127.0.0.1:{port}/v1", env_key = "CONFORM_KEY", name = '
                '"demo" }\n'
            )
            model = (
                f'[models.codex]\nbackend = "codex"\nbin = "{CODEX}"\n'
                f'home = "{WORK / "conform-codex-home"}"\nmodel = "gpt-5.5"\n'
            )
            release = subprocess.run(
                [str(CODEX), "--version"], capture_output=True, text=True, check=True
            ).stdout.split()[-1]
            out.append(
                _one(
                    "Toolwire, the real Codex",
                    f"{own}, Codex {release}",
                    "codex",
                    *toolwire("codex", model + provider, {"CONFORM_KEY": KEY}),
                )
            )
        out.append(_one("Toolwire, Messages made from chat", own, "native", *before_chat(port), MESSAGES))
        if LITELLM.exists():
            for title, (route, checks) in ROUTES.items():
                out.append(_one(title, _litellm_version(), "native", *litellm(port, route), checks))
    finally:
        upstream.stop()
    return out


def _one(
    title: str, release: str, model: str, process: Process, port: int, checks: Sequence[Check] = CATALOGUE
) -> Judged:
    try:
        return Judged(title, release, asyncio.run(judged(port, model, checks)))
    finally:
        process.stop()


def _litellm_version() -> str:
    [folder] = (WORK / "litellm" / "lib").glob("python*/site-packages/litellm-*.dist-info")
    return folder.name.removeprefix("litellm-").removesuffix(".dist-info")


def section(results: list[Judged], six: list[Tried]) -> str:
    lines = ["| endpoint | version | score | pass | fail | not run |", "|---|---|---|---|---|---|"]
    for one in results:
        counts = [one.outcome.count(result) for result in ("pass", "fail", "not-run")]
        lines.append(
            f"| {one.title} | {one.version} | {score(one.outcome)} % | {' | '.join(map(str, counts))} |"
        )
    lines += ["", "### Six common faults of Messages gateways", "", SIX, "", *table(six), ""]
    upstreams = ", ".join(f"`{name}`" for name in STREAMS)
    lines += textwrap.wrap(f"Upstreams: {upstreams}.", WIDTH, break_on_hyphens=False)
    for one in results:
        rows = [finding for finding in one.outcome.findings if finding.verdict.result != "pass"]
        if rows:
            lines += [
                "",
                f"### {one.title}, {one.version}",
                "",
                f"{summary(one.outcome)}.",
                "",
                "| check | why it did not pass |",
                "|---|---|",
            ]
            lines += [
                f"| `{finding.check.id}`{_level(finding.check.level)} | "
                f"{_cell(finding.verdict.result, finding.verdict.seen)} |"
                for finding in rows
            ]
    return "\n".join(lines)


def _level(level: str) -> str:
    return " ○" if level == "optional" else ""


def _cell(result: str, seen: str) -> str:
    return ("not run: " if result == "not-run" else "") + one_line(seen, SEEN).replace("|", "\\|").replace(
        "`", "'"
    )


def main() -> int:
    text = PAGE.read_text("utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        print(f"docs/conform.md lacks the comments {BEGIN} and {END}", file=sys.stderr)
        return 2
    results = run()
    gateways: dict[str, Callable[[int], tuple[Process, int]]] = {
        f"Toolwire {version('toolwire')}": before_chat
    }
    if LITELLM.exists():
        gateways[f"LiteLLM {_litellm_version()}"] = partial(litellm, model=FROM_CHAT)
    six = asyncio.run(tried(gateways))
    for one in results:
        print(f"{one.title} {one.version}: {summary(one.outcome)}")
    PAGE.write_text(f"{before}{BEGIN}\n\n{section(results, six)}\n\n{END}{after}", "utf-8")
    print(f"written: {PAGE.relative_to(Path.cwd()) if PAGE.is_relative_to(Path.cwd()) else PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
