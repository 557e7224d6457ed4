"""Measures an MCP server behind `toolwire mcp`, compared with the same server used directly.

The official SDK is the client in both cases. Direct and proxied calls alternate in one run, so that other
load on the machine affects both alike. A rule allows the calls. Toolwire writes each call into its audit log,
as in real use.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median

from mcp import Client, StdioServerParameters

from bench.report import Row, figure

SERVER = str(Path(__file__).with_name("proxy_server.py"))
CALLS, LISTS = 400, 15
SERVERS, TOOLS = 50, 20
"""50 servers with 1,000 tools in all."""
START_S = 120.0
MOST_MS, MOST_LIST_MS = 2.0, 100.0


def _settings(folder: Path, servers: int, tools: int) -> Path:
    lines = ["[store]", f'url = "sqlite:///{folder}/bench-{servers}.db"']
    for number in range(servers):
        command = ", ".join(f'"{word}"' for word in (sys.executable, SERVER, str(tools)))
        lines += [f"[mcp.bench{number}]", f"command = [{command}]", 'allow = ["*"]']
    path = folder / f"toolwire-{servers}.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def _proxy(folder: Path, servers: int, tools: int) -> StdioServerParameters:
    named = [word for number in range(servers) for word in ("--server", f"bench{number}")]
    words = ["-m", "toolwire", "mcp", "--config", str(_settings(folder, servers, tools)), *named]
    return StdioServerParameters(command=sys.executable, args=words, env=dict(os.environ))


async def _ms(call: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await call()
    return (time.perf_counter() - began) * 1000


async def _calls(folder: Path, mode: str, times: int) -> tuple[list[float], list[float]]:
    """Returns the times of direct and of proxied calls, in milliseconds."""
    direct, proxied = [], []
    alone = StdioServerParameters(command=sys.executable, args=[SERVER, "1"])
    async with Client(alone, mode="legacy") as near, Client(_proxy(folder, 1, 1), mode=mode) as far:
        await near.list_tools()
        await far.list_tools()
        for number in range(-20, times):  # the first calls warm up
            one = await _ms(lambda: near.call_tool("echo_0", {"text": "a"}))
            other = await _ms(lambda: far.call_tool("bench0__echo_0", {"text": "a"}))
            if number >= 0:
                direct.append(one)
                proxied.append(other)
    return direct, proxied


async def _lists(folder: Path, times: int) -> tuple[float, list[float]]:
    """Returns the time of the first complete list, and the times of later lists, in milliseconds."""
    async with Client(_proxy(folder, SERVERS, TOOLS)) as client:
        began = time.perf_counter()
        async with asyncio.timeout(START_S):
            while len((await client.list_tools(cache_mode="bypass")).tools) < SERVERS * TOOLS:
                await asyncio.sleep(0.2)  # servers that start late are listed as soon as they are ready
        first = (time.perf_counter() - began) * 1000
        return first, [await _ms(lambda: client.list_tools(cache_mode="bypass")) for _ in range(times)]


async def _measured(folder: Path, quick: bool) -> list[Row]:
    rows = []
    for mode, era in (("auto", "2026-07-28"), ("legacy", "2025-11-25")):
        direct, proxied = await _calls(folder, mode, CALLS // 8 if quick else CALLS)
        more = median(far - near for near, far in zip(direct, proxied, strict=True))
        shown = f"directly {figure(median(direct))} ms, through Toolwire {figure(median(proxied))} ms"
        measure = f"a call that a rule allows, MCP {era}: time that Toolwire adds"
        rows.append(Row(measure, more, shown, "at most", MOST_MS, "ms"))
    first, others = await _lists(folder, LISTS)
    shown = f"the first list, for which {SERVERS} servers start: {figure(first / 1000)} s"
    measure = f"list of {SERVERS * TOOLS:,} tools of {SERVERS} servers, after the first list"
    return [*rows, Row(measure, median(others), shown, "at most", MOST_LIST_MS, "ms")]


def run(quick: bool) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="toolwire-bench-") as folder:
        return asyncio.run(_measured(Path(folder), quick))
