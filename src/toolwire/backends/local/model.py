"""A GGUF model in memory, and its options.

Models in the settings with the same file, context, parallel, threads and batch share one `LocalModel`. The
file is loaded once, and unloaded when the last backend that uses it closes.

- llama.cpp decodes in its own threads. A run also occupies one Python thread, which waits without the GIL.
- llama.cpp calls `Stream.put` after every token, and after every step of the prompt. If `put` returns True,
  llama.cpp stops the run.
- llama.cpp always opens an HTTP server. This server gets a socket in a private folder, and the folder is
  removed at once, so nobody can connect.
- llama.cpp silently ignores a grammar that llguidance cannot read. So `LocalModel.accepts` tries each new
  grammar with a request for a single token.
- Loading holds the GIL, so it should be short. The file is therefore read into the page cache first.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import shutil
import tempfile
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolwire.backends.base import About
from toolwire.backends.local.pull import DEFAULT, MODELS, Known, importable
from toolwire.core.errors import unavailable
from toolwire.emulate.schemas.bounding import SchemaLimits
from toolwire.emulate.schemas.constrain import probes
from toolwire.settings.extras import add_extra, own_command

RANGES: dict[str, tuple[float, float]] = {
    "context": (256, 1 << 20),
    "parallel": (1, 64),
    "threads": (0, 512),
    "batch": (32, 4096),
    "temperature": (0, 2),
    "top_p": (0, 1),
    "max_tokens": (1, 1 << 20),
    "max_string": (0, 1 << 20),
    "max_items": (0, 4096),
}
MOST_THREADS = 8
SMALL = 500_000_000
"""A model whose file has fewer bytes counts as small and gets tighter limits."""


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """The keys of `[models.ID]` with `backend = "local"`."""

    gguf: str = ""
    """The path of a GGUF file, or the name of a model in `toolwire local list`.

    If it is not set, this is the small default model.
    """
    context: int = 8192
    """The maximum number of tokens of a request, with prompt and answer together."""
    parallel: int = 2
    """How many requests are decoded at the same time. Further requests wait."""
    threads: int = 0
    """The number of threads that decode. 0: chosen by the number of cores."""
    batch: int = 128
    """How many tokens of a prompt are read in one step. A run can be stopped between two steps."""
    temperature: float = 0.2
    top_p: float = 0.9
    max_tokens: int = 1024
    """The maximum number of tokens of an answer, if the request sets none.

    A required call may use half the context if this is more, because the grammar makes sure that the call
    ends.
    """
    max_string: int = 0
    """The maximum length of a string if a tool's schema sets no limit. 0: chosen by the model's size."""
    max_items: int = 0
    """The maximum number of items if a tool's schema sets no limit. 0: chosen by the model's size."""

    def __post_init__(self) -> None:
        for key, (low, high) in RANGES.items():
            if not low <= getattr(self, key) <= high:
                raise ValueError(f"{key}: expected {low} to {high}, got {getattr(self, key)}")

    def limits(self, size: int) -> SchemaLimits:
        """Returns the limits for strings and arrays whose schema sets no limits.

        `size`: the size of the model's file, in bytes.
        """
        small = size < SMALL
        return SchemaLimits(
            string=self.max_string or (96 if small else 8192),
            items=self.max_items or (4 if small else 64),
            keys=4 if small else 32,
        )

    @property
    def cores(self) -> int:
        """The number of decoding threads: `threads`, or else a number for this machine's cores.

        With up to four cores, all of them are used. With more cores, half of them are used, at most
        `MOST_THREADS`.
        """
        if self.threads:
            return self.threads
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return cores if cores <= 4 else min(cores // 2, MOST_THREADS)


# --- the model ---

Chunk = bytes | Exception | None
"""A chunk of llama.cpp's answer as JSON, an error, or None at the end of the answer."""


class Stream:
    """Passes the chunks of one run from the decoding thread (`put`) to the event loop (`get`).

    The loop wakes up once for all chunks that arrived while it was busy.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._chunks: deque[Chunk] = deque()
        self._woken = False
        self._event = asyncio.Event()
        self.cancelled = False

    def put(self, chunk: Chunk) -> bool:
        """Adds a chunk. Returns True if the run was cancelled and decoding should stop."""
        if self.cancelled:
            return True
        self._chunks.append(chunk)
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._wake)
            except RuntimeError:  # the loop is closed
                self.cancelled = True
                return True
        return False

    def _wake(self) -> None:
        self._woken = False
        self._event.set()

    async def get(self) -> list[Chunk]:
        """Returns all chunks that have arrived. Waits until there is at least one."""
        while not self._chunks:
            self._event.clear()
            await self._event.wait()
        return [self._chunks.popleft() for _ in range(len(self._chunks))]


Key = tuple[str, int, int, int, int]
PROBES = 256
LONGEST = 70
"""The maximum length of a temporary folder's path. The path of a socket in it must not be too long."""
_BLOCK = 1 << 20
_SPARE = 1 << 30
_import_lock = threading.Lock()


class LocalModel:
    """A loaded model. `users`: the number of backends that use it."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.users = 0
        self.size = 0
        self._threads = ThreadPoolExecutor(key[2], thread_name_prefix="toolwire-local")
        self.server: Any = None
        self._loading: Future[None] | None = None
        self._lock = threading.Lock()
        self._accepted: OrderedDict[str, bool] = OrderedDict()
        self._running: set[Stream] = set()

    async def load(self) -> None:
        """Loads the file unless it is already loaded. After a failure, the next call tries again."""
        with self._lock:
            if self._loading is None or (self._loading.done() and self._loading.exception() is not None):
                self._loading = self._start(self._load)
            loading = self._loading
        if not loading.done():
            done = asyncio.Event()
            loop = asyncio.get_running_loop()
            loading.add_done_callback(lambda _: loop.is_closed() or loop.call_soon_threadsafe(done.set))
            await done.wait()
        loading.result()

    def _load(self) -> None:
        path = self.key[0]
        if not Path(path).is_file():
            problem = f"The model's file is not there ({Path(path).name})."
            name = next((name for name, known in MODELS.items() if str(known.path) == path), "")
            what = "To download it" if name else "For the small default model"
            raise unavailable(f"{problem} {what}, run: {own_command(f'local pull {name}'.strip())}")
        llama = llama_cpp()
        self.size = os.path.getsize(path)
        _read_into_page_cache(path)
        parent = None if len(tempfile.gettempdir()) < LONGEST else "/tmp"
        folder = tempfile.mkdtemp(prefix="toolwire-", dir=parent)
        params = parameters(llama, self.key)
        params.hostnames = [os.path.join(folder, "s.sock")]
        try:
            server = llama.Server(params)
        except RuntimeError:
            problem = f"llama.cpp cannot load {Path(path).name}: not a GGUF file, or not enough memory."
            raise unavailable(problem) from None
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self.server = server
        # `accepts` also starts the server's loop. Without a first request, the server could not be closed.
        if not self.accepts('%llguidance {}\nstart: "~"\n'):
            self.server = None
            raise unavailable(f"This build of llama.cpp has no llguidance: {add_extra('local')}")

    def submit(self, render: Callable[[], bytes], stream: Stream) -> Future[None]:
        """Decodes a request as soon as a thread is free. `render` returns the body of the request.

        The chunks of the answer are passed to `stream`.
        """
        job = self._start(self._run, render, stream)
        self._running.add(stream)
        job.add_done_callback(lambda _: self._running.discard(stream))
        return job

    def _start(self, work: Callable[..., None], *given: Any) -> Future[None]:
        try:
            return self._threads.submit(work, *given)
        except RuntimeError:
            raise unavailable("The model is being closed.") from None

    def _run(self, render: Callable[[], bytes], stream: Stream) -> None:
        try:
            if not stream.cancelled:
                self.server.handle_chat_completions(render(), stream.put)
            stream.put(None)
        except Exception as error:
            stream.put(error)

    def accepts(self, grammar: str) -> bool:
        """Returns whether llguidance can read a grammar.

        llama.cpp ignores a grammar that llguidance cannot read. So `grammar` must allow only texts that begin
        with a tilde: if the answer has no tilde, llama.cpp has ignored the grammar.
        """
        known = self._accepted.get(grammar)
        if known is None:
            body = {"prompt": "a", "max_tokens": 1, "temperature": 0, "cache_prompt": False}
            choices = self.server.handle_completions({**body, "grammar": grammar}).get("choices")
            known = bool(choices) and choices[0]["text"].startswith("~")
            with self._lock:
                self._accepted[grammar] = known
                while len(self._accepted) > PROBES:
                    self._accepted.popitem(last=False)
        return known

    def refused(self, grammar: str) -> set[str]:
        """Returns the names of the grammar's rules whose schema llguidance cannot read."""
        whole, single = probes(grammar)
        if self.accepts(whole):
            return set()
        return {rule for rule, one in single.items() if not self.accepts(one)}

    @property
    def idle(self) -> bool:
        return not self._running

    async def close(self) -> None:
        for stream in list(self._running):  # also streams of runs that still wait for a thread
            stream.put(None)
            stream.cancelled = True
        await asyncio.get_running_loop().run_in_executor(None, self._close)

    def _close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
        self.server = None


# --- sharing ---

_models: dict[Key, LocalModel] = {}
_models_lock = threading.Lock()


def key_of(options: LocalOptions) -> Key:
    named = MODELS.get(options.gguf or DEFAULT)
    path = Path(options.gguf).expanduser() if named is None else named.path
    return (os.path.realpath(path), options.context, options.parallel, options.cores, options.batch)


def lacking(options: LocalOptions) -> tuple[str, str] | None:
    """Returns what a model lacks and how to get it; None if the model can be loaded.

    Does not import llama.cpp and does not open the model's file.
    """
    if not importable():
        return "llama.cpp is not installed", add_extra("local")
    if os.path.isfile(key_of(options)[0]):
        return None
    if options.gguf and options.gguf not in MODELS:
        how = f"correct the model's gguf, or remove it and run: {own_command('local pull')}"
        return f"no file {options.gguf}", how
    return "no model is downloaded", own_command(f"local pull {options.gguf}".strip())


def about(options: LocalOptions) -> About:
    known = _known(options)
    return About(known.title, known.use, known.no_tools, is_trial=bool(known.no_tools)) if known else About()


def _known(options: LocalOptions) -> Known | None:
    """Returns the downloadable model that these options name, or None."""
    by_file = {known.file: known for known in MODELS.values()}
    return MODELS.get(options.gguf or DEFAULT) or by_file.get(Path(options.gguf).name)


def take(options: LocalOptions) -> LocalModel:
    """Returns the shared model for these options. Call `give_back` when it is no longer used."""
    key = key_of(options)
    with _models_lock:
        model = _models.get(key) or _models.setdefault(key, LocalModel(key))
        model.users += 1
    return model


async def give_back(model: LocalModel) -> None:
    with _models_lock:
        model.users -= 1
        last = model.users == 0
        if last:
            _models.pop(model.key, None)
    if last:
        await model.close()


# --- llama.cpp ---


def parameters(llama: Any, key: Key) -> Any:
    """Returns llama.cpp's parameters for a model."""
    path, context, parallel, threads, batch = key
    params = llama.CommonParams()
    params.model.path = path
    params.n_ctx, params.n_parallel = context * parallel, parallel
    params.n_batch = params.n_ubatch = batch
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.verbosity = 0
    params.warmup = params.fit_params = params.ui = params.endpoint_slots = False
    params.cache_ram_mib = 0
    params.n_threads_http = 1
    return params


def llama_cpp() -> Any:
    """Imports llama.cpp so that its threads sleep while they wait for each other.

    If they spin instead, another busy process makes llama.cpp ten times slower.
    """
    with _import_lock:
        before = os.environ.get("OMP_WAIT_POLICY")
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # llama.cpp reads this once, when it is loaded
        try:
            return importlib.import_module("xllamacpp")
        except ImportError:
            raise unavailable(f"llama.cpp is not installed, run: {add_extra('local')}") from None
        finally:
            if before is None:
                os.environ.pop("OMP_WAIT_POLICY", None)


def _read_into_page_cache(path: str) -> None:
    if os.path.getsize(path) > _SPARE:  # llama.cpp maps a large file and reads only what it needs
        return
    with open(path, "rb") as file:
        while file.read(_BLOCK):
            pass
