"""What every test may use: the judges, and a gateway over a scripted model."""

from __future__ import annotations

import gc
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

from doubles.judges import Judge
from doubles.nodes import RedisServer, missing
from doubles.postgres import Postgres, binaries, shared
from doubles.served import served
from toolwire.backends.base import Backend
from toolwire.core.turn import Api
from toolwire.gateway.pipeline import Answer, Caller, Gateway
from toolwire.settings.types import ServerSettings, Settings, ToolSettings
from toolwire.store.store import Store
from toolwire.surfaces.http.app import create_app
from toolwire.testing import ScriptedBackend, ScriptedOptions

# No time limits on examples: the machine may be busy. In CI every run tries the same examples; new ones are
# looked for by `make fuzz`.
settings.register_profile(
    "toolwire",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=os.environ.get("CI") == "true",
)
settings.register_profile("quick", settings.get_profile("toolwire"), max_examples=20)
settings.load_profile("toolwire")

# Tests start many hundred processes: without bytecode on the disk each would compile all of Toolwire anew.
sys.dont_write_bytecode = False
# Programs that tests start find the doubles too.
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH")))
)
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Fifteen thousand tests are a million objects that stay. The collector scans them neither while they are made
# nor, frozen by `pytest_collection_finish`, with each collection of a test.
gc.disable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


# --- what a cost is measured with ---


Growth = Callable[[Callable[[int], object], int, int], float]


@pytest.fixture
def growth() -> Growth:
    """How many times more CPU time the large size costs than the small one.

    Each cost is the least of several rounds: other processes, the garbage collector and cold caches only ever
    add time, so the least is the closest to the true cost, and a cost that really grows faster than its input
    still shows.
    """

    def cost(call: Callable[[int], object], size: int) -> float:
        began = time.process_time()
        call(size)
        return time.process_time() - began

    def measure(call: Callable[[int], object], small: int, large: int) -> float:
        call(small)
        gc.collect()
        gc.disable()
        try:
            rounds = [(cost(call, small), cost(call, large)) for _ in range(5)]
        finally:
            gc.enable()
        return min(large for _, large in rounds) / max(min(small for small, _ in rounds), 1e-4)

    return measure


# --- which tests run where ---

TOGETHER = {
    "clients": ("conform/test_client",),
    "documentation": ("test_docs",),
    "image": ("service/test_docker",),
    "local model": ("backends/local", "backends/test_llamacpp_server"),
    "service": ("service",),
}
"""Files that one worker runs, one after another; the first match counts.

Most of them share what is dear to start. Those of `service` mostly wait for servers to fail and to recover:
while one worker waits, the others use the processors. Every other file goes to a worker as a whole.
"""
LONG = (
    "conform/test_client",
    "service/test_docker",
    "service",
    "backends/local",
    "backends/acp/test_acp_real",
    "test_d",
    "cli/test_launch",
    "conform/test_cl",
    "web",
    "surfaces/terminal",
    "surfaces/mcp",
    "backends/codex",
    "backends/cursor",
)
"""What takes long, in this order; it comes first, so that all workers end at about the same time."""


def _below_tests(path: str) -> str:
    return path.removeprefix("tests/")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The long ones first: several workers then end at about the same time."""

    def place(item: pytest.Item) -> int:
        path = _below_tests(item.nodeid)
        return next((place for place, start in enumerate(LONG) if path.startswith(start)), len(LONG))

    items.sort(key=place)
    for item in items:
        if OF_PROCESSES & set(getattr(item, "fixturenames", ())):
            item.add_marker("process")
    if config.option.quick:
        marked = [item for item in items if item.get_closest_marker("process")]
        config.hook.pytest_deselected(items=marked)
        items[:] = [item for item in items if not item.get_closest_marker("process")]


class Sharing(LoadScopeScheduling):  # type: ignore[misc]
    """Hands out files, and what stands in `TOGETHER`, in the order in which they were collected: what a file
    starts once is started once.
    """

    def _split_scope(self, nodeid: str) -> str:
        path = _below_tests(nodeid).partition("::")[0]
        return next((name for name, starts in TOGETHER.items() if path.startswith(starts)), path)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Sharing:
    config.option.loadscopereorder = False
    return Sharing(config, log)


# --- tests without processes ---

OF_PROCESSES = {"postgres_server", "redis_server"}
"""Fixtures that start a process."""
STARTS = {"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen"}
"""Audit events of the interpreter."""


class Guard:
    """Refuses to start a process, or to connect to another machine, while it is closed."""

    def __init__(self) -> None:
        self.closed = False
        self.refused: list[str] = []

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.closed:
            return
        if event in STARTS:
            self._refuse("starts a process; mark it with pytest.mark.process")
        elif event == "socket.connect" and _is_far(arguments[1]):
            self._refuse(f"connects to {arguments[1]}")

    def _refuse(self, what: str) -> None:
        self.refused.append(what)
        raise RuntimeError(f"this test {what}")


def _is_far(address: Any) -> bool:
    return isinstance(address, tuple) and not str(address[0]).startswith(("127.", "::1"))


guard = Guard()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick",
        action="store_true",
        help="fewer random examples, and no tests marked `process`; any other test that starts one fails",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.option.quick:
        settings.load_profile("quick")
        platform.processor()  # Python starts a process for this once, and then remembers
        sys.addaudithook(guard)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    guard.closed = True
    try:
        return (yield)
    finally:
        guard.closed = False


Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


def _allowed(report: Report) -> Report:
    """Where everything can be had, nothing may be left out: under CI=true what is skipped has failed."""
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("CI") == "true":
        report.outcome = "failed"
        report.longrepr = f"skipped, which CI does not allow: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = _allowed((yield))
    if guard.refused and call.when == "teardown":
        report.outcome = "failed"
        report.longrepr = f"the test {guard.refused[0]}"
        guard.refused.clear()
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _allowed((yield))


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for this machine, signed by itself, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is missing")
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "cert.pem", folder / "key.pem"
    asked = [
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run(
        [openssl, *asked, *names, "-keyout", key, "-out", certificate], check=True, capture_output=True
    )
    return certificate, key


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """Started once, as a user that is not root.

    It can be ended and started again; who ends it starts it again.
    """
    found = binaries()
    if found is None:
        pytest.skip("PostgreSQL is missing; make test installs it where it may")
    with shared(found) as server:
        yield server


@pytest.fixture
def postgres(postgres_server: Postgres) -> Iterator[Postgres]:
    """The server, running, also after the test."""
    postgres_server.start()
    yield postgres_server
    postgres_server.start()


@pytest.fixture
def postgres_url(postgres: Postgres) -> Iterator[str]:
    """A fresh, empty database."""
    url = postgres.create()
    yield url
    postgres.start()
    postgres.drop(url)


@pytest.fixture(scope="session")
def judge() -> Judge:
    """All judges: `.stream(raw, api, …)`, `.body(body, api, …)` and `.error(status, body)` assert that
    nothing is wrong.
    """
    return Judge()


class Table:
    """A gateway over scripted models, asked without a socket: `ask` gives body or raw stream."""

    def __init__(self, tools: ToolSettings | None = None, store: Store | None = None) -> None:
        self._tools = tools or ToolSettings()
        self._store = store
        self.backend = ScriptedBackend("m")
        self.gateway: Gateway | None = None

    def play(self, script: str, tools: str = "native", **options: Any) -> Table:
        """Puts a scripted model behind the gateway."""
        scripted = ScriptedOptions(script=script, tools=tools, **options)  # type: ignore[arg-type]
        self.backend = ScriptedBackend("m", scripted)
        return self.serve(self.backend)

    def serve(self, backend: Backend) -> Table:
        settings = Settings(server=ServerSettings(commit_after_s=5), tools=self._tools)
        self.gateway = Gateway(settings, backends={"m": backend}, store=self._store)
        return self

    async def answer(self, api: Api, body: dict[str, Any], **caller: Any) -> Answer:
        assert self.gateway is not None
        return await self.gateway.respond(api, json.dumps({"model": "m", **body}).encode(), Caller(**caller))

    async def body(self, api: Api, body: dict[str, Any], **caller: Any) -> dict[str, Any]:
        answer = await self.answer(api, {**body, "stream": False}, **caller)
        assert answer.body is not None
        return cast("dict[str, Any]", json.loads(answer.body))

    async def stream(self, api: Api, body: dict[str, Any], **caller: Any) -> bytes:
        answer = await self.answer(api, {**body, "stream": True}, **caller)
        assert answer.stream is not None
        return b"".join([block async for block in answer.stream])


@pytest.fixture
def table() -> Table:
    return Table()


@pytest.fixture
def table_with() -> Callable[..., Table]:
    """A table with other tool settings, or with a store."""

    def make(*, store: Store | None = None, **tools: Any) -> Table:
        return Table(ToolSettings(**tools), store)

    return make


@asynccontextmanager
async def _serving(gateway: Gateway, settings: Settings, store: Store | None = None) -> AsyncIterator[str]:
    app = create_app(gateway, settings, store)
    try:
        async with served(app) as (_, port):
            yield f"http://127.0.0.1:{port}"
    finally:
        await app.close()
        await gateway.close()
        if store is not None:
            await store.close()


@pytest.fixture
def on_a_socket() -> Callable[..., AbstractAsyncContextManager[str]]:
    """`async with on_a_socket(gateway, settings, store) as url`: the real HTTP surface on loopback.

    It closes gateway and store.
    """
    return _serving


# --- the store on both engines, and a real Redis ---

ENGINES = ("sqlite", pytest.param("postgresql", marks=pytest.mark.process))


@pytest.fixture(params=ENGINES)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store's URL, on each engine in turn."""
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'data' / 'toolwire.db'}"


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[Store]:
    opened = Store(store_url)
    yield opened
    await opened.close()


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    if "redis-server" in missing():
        pytest.skip("redis-server is missing; make test installs it where it may")
    folder: Path = tmp_path_factory.mktemp("redis")
    server = RedisServer(folder).start()
    yield server
    server.end()


@pytest.fixture
def redis(redis_server: RedisServer) -> RedisServer:
    """Running, and empty."""
    redis_server.end()
    return redis_server.start()
