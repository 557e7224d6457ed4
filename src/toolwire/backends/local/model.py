"""A GGUF file in memory: loaded once a process for each file and shape, shared by all models that want it, unloaded when the last of them closes.

- llama.cpp decodes in threads of its own; a run occupies one thread of ours, which waits outside the interpreter's lock. Runs beyond `parallel`
  wait their turn.
- A run is stopped by what its callback answers: after every token, and after every batch of the prompt.
- llama.cpp always opens an HTTP listener. It gets a socket in a private folder, which is removed at once: nothing can connect to it.
- llama.cpp drops a grammar that llguidance can not read without a word. So every new one is tried first, on a single token.
- Loading holds the interpreter's lock (half a second for the small model), so the file is read into the page cache before.
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
from pathlib import Path
from typing import Any

from toolwire.backends.local.options import LocalOptions
from toolwire.backends.local.pull import default_path, importable
from toolwire.core.errors import ToolwireError
from toolwire.emulate.schemas.constrain import probes

# --- stream ------------------------------------------------------------
#
# From llama.cpp's thread to the event loop: chunks as they are decoded, one wake-up for all that came
# while the loop was busy.

Chunk = bytes | Exception | None
"""llama.cpp's JSON; what went wrong; the end."""


class Stream:
    """Chunks of one run. `put` is called by the thread that decodes, everything else by the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._chunks: deque[Chunk] = deque()
        self._woken = False
        self._event = asyncio.Event()
        self.cancelled = False

    def put(self, chunk: Chunk) -> bool:
        """Hands a chunk over. True: nobody wants more, decoding should end."""
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
        """All chunks that are there; waits for the first."""
        while not self._chunks:
            self._event.clear()
            await self._event.wait()
        taken = []
        while self._chunks:
            taken.append(self._chunks.popleft())
        return taken


Key = tuple[str, int, int, int, int]
PROBES = 256
LONGEST = 70
"""A temporary folder with a longer name has no room for a socket's."""
_BLOCK = 1 << 20
_SPARE = 1 << 30
_import_lock = threading.Lock()


class LocalModel:
    """One loaded file. `users` are the backends that hold it."""

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
        """Loads the file, if it is not loaded yet; a failure is tried again by whoever asks next."""
        with self._lock:
            if self._loading is None or (self._loading.done() and self._loading.exception() is not None):
                self._loading = self._start(self._load)
            loading = self._loading
        if not loading.done():
            there = asyncio.Event()
            loop = asyncio.get_running_loop()
            loading.add_done_callback(lambda _: loop.is_closed() or loop.call_soon_threadsafe(there.set))
            await there.wait()
        loading.result()

    def _load(self) -> None:
        path = self.key[0]
        if not Path(path).is_file():
            raise ToolwireError(
                "backend_unavailable",
                f"The model's file is not there ({Path(path).name}). For the small default model, run: toolwire local pull",
            )
        llama = llama_cpp()
        self.size = os.path.getsize(path)
        _read_through(path)
        folder = tempfile.mkdtemp(
            prefix="toolwire-", dir=None if len(tempfile.gettempdir()) < LONGEST else "/tmp"
        )
        params = parameters(llama, self.key)
        params.hostnames = [os.path.join(folder, "s.sock")]
        try:
            server = llama.Server(params)
        except RuntimeError:
            raise ToolwireError(
                "backend_unavailable",
                f"llama.cpp can not load {Path(path).name}: not a GGUF file, or not enough memory.",
            ) from None
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self.server = server
        if not self.accepts(
            '%llguidance {}\nstart: "~"\n'
        ):  # and its loop is running from here on, so that it can be closed
            self.server = None
            raise ToolwireError(
                "backend_unavailable",
                "This build of llama.cpp has no llguidance: pip install 'toolwire[local]'",
            )

    def submit(self, render: Callable[[], bytes], stream: Stream) -> Future[None]:
        """Decodes what `render` asks into the stream, in a thread, as soon as one is free."""
        job = self._start(self._run, render, stream)
        self._running.add(stream)
        job.add_done_callback(lambda _: self._running.discard(stream))
        return job

    def _start(self, work: Callable[..., None], *given: Any) -> Future[None]:
        try:
            return self._threads.submit(work, *given)
        except RuntimeError:
            raise ToolwireError("backend_unavailable", "The model is being closed.") from None

    def _run(self, render: Callable[[], bytes], stream: Stream) -> None:
        try:
            if not stream.cancelled:
                self.server.handle_chat_completions(render(), stream.put)
            stream.put(None)
        except Exception as error:
            stream.put(error)

    def accepts(self, grammar: str) -> bool:
        """Whether llguidance can read a grammar, which must demand a tilde first."""
        known = self._accepted.get(grammar)
        if known is None:
            asked = {
                "prompt": "a",
                "max_tokens": 1,
                "temperature": 0,
                "cache_prompt": False,
                "grammar": grammar,
            }
            told = self.server.handle_completions(asked)
            known = bool(told.get("choices")) and told["choices"][0]["text"].startswith("~")
            with self._lock:
                self._accepted[grammar] = known
                while len(self._accepted) > PROBES:
                    self._accepted.popitem(last=False)
        return known

    def refused(self, grammar: str) -> set[str]:
        """The rules of a grammar whose schema llguidance can not read; mostly none."""
        whole, single = probes(grammar)
        return (
            set() if self.accepts(whole) else {rule for rule, one in single.items() if not self.accepts(one)}
        )

    @property
    def idle(self) -> bool:
        return not self._running

    async def close(self) -> None:
        for stream in list(self._running):  # those that wait for a thread too: nobody else would tell them
            stream.put(None)
            stream.cancelled = True
        await asyncio.get_running_loop().run_in_executor(None, self._close)

    def _close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
        self.server = None


# --- sharing -----------------------------------------------------------------------------------------------------------------------------------

_models: dict[Key, LocalModel] = {}
_models_lock = threading.Lock()


def key_of(options: LocalOptions) -> Key:
    path = Path(options.gguf).expanduser() if options.gguf else default_path()
    return (os.path.realpath(path), options.context, options.parallel, options.cores, options.batch)


def lacking(options: LocalOptions) -> tuple[str, str] | None:
    """What a model needs and has not, and what mends it; None: it could be loaded. Nothing is imported or read."""
    if not importable():
        return "llama.cpp is not installed", "pip install 'toolwire[local]'"
    if os.path.isfile(key_of(options)[0]):
        return None
    if options.gguf:
        return (
            f"no file {options.gguf}",
            "correct gguf of the model, or leave it out and run: toolwire local pull",
        )
    return "no model was pulled", "toolwire local pull"


def take(options: LocalOptions) -> LocalModel:
    """The model of these options, to be given back with `give_back`."""
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


# --- pieces ------------------------------------------------------------------------------------------------------------------------------------


def parameters(llama: Any, key: Key) -> Any:
    """What llama.cpp is told about a model."""
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
    """llama.cpp. Its threads must sleep while they wait for each other: where they spin, another busy process makes it ten times slower."""
    with _import_lock:
        told = os.environ.get("OMP_WAIT_POLICY")
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read once, when the library is loaded
        try:
            return importlib.import_module("xllamacpp")
        except ImportError:
            raise ToolwireError(
                "backend_unavailable", "llama.cpp is not installed, run: pip install 'toolwire[local]'"
            ) from None
        finally:
            if told is None:
                os.environ.pop("OMP_WAIT_POLICY", None)


def _read_through(path: str) -> None:
    if os.path.getsize(path) > _SPARE:  # llama.cpp maps it, and will read what it needs
        return
    with open(path, "rb") as file:
        while file.read(_BLOCK):
            pass
