"""The settings page's models and vault folder: what is kept, what is refused, and no secret comes back."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from toolwire.settings import page_file
from toolwire.settings.load import load

KEY = "sk-test-a-long-pasted-key-1234567890"


def settings_in(folder: Path, more: str = "", **environ: str) -> Any:
    """The settings of a server whose file and store are in the folder."""
    config = folder / "toolwire.toml"
    config.write_text(f'[store]\nurl = "sqlite:///{folder}/toolwire.db"\n{more}')
    return load(str(config), {"HOME": str(folder), **environ}, {})


SCRIPTED = '[models.mine]\nbackend = "scripted"\n'


@asynccontextmanager
async def upstream(handler: Any) -> AsyncIterator[str]:
    """A fake server at a free port."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    try:
        yield f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[attr-defined]
    finally:
        await runner.cleanup()


async def test_an_added_model_joins_at_once_and_is_there_after_a_restart(
    house_of: Any, tmp_path: Path
) -> None:
    async with house_of(settings_in(tmp_path, SCRIPTED)) as house:
        draft = {"id": "demo2", "kind": "scripted"}
        async with house.listening() as heard:
            listed = await house.call("POST", "/settings/models", draft)

            async def notified() -> bool:
                return any(kind == "settings" for kind, _ in heard)

            await house.until(notified)
        rows = {row["id"]: row for row in listed["models"]}
        assert rows["demo2"]["origin"] == "page" and rows["demo2"]["draft"]["kind"] == "scripted"
        assert rows["mine"]["origin"] == str(tmp_path / "toolwire.toml") and "draft" not in rows["mine"]
        async with house.client.get(f"{house.url}/v1/models") as response:
            assert {one["id"] for one in (await response.json())["data"]} >= {"mine", "demo2"}
        health = (await house.call("GET", "/settings/health"))["health"]
        assert health["demo2"] == {"ok": True, "reason": ""}
        tested = await house.call("POST", "/settings/test", {"id": "demo2"})
        assert tested["ok"] and [step["ok"] for step in tested["steps"]] == [True, True]
    file = tmp_path / page_file.FILE_NAME
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again = settings_in(tmp_path, SCRIPTED)
    assert [model.id for model in again.models] == ["mine", "demo2"]
    async with house_of(again) as house:
        await house.call("DELETE", "/settings/models/demo2")
        async with house.client.get(f"{house.url}/v1/models") as response:
            assert "demo2" not in {one["id"] for one in (await response.json())["data"]}
        answer = await house.call("DELETE", "/settings/models/mine", status=400)
        assert "toolwire.toml" in answer["error"]["message"]


async def test_a_pasted_key_is_private_sent_only_upstream_and_never_returned(
    house_of: Any, tmp_path: Path
) -> None:
    seen: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        seen.append(request.headers.get("authorization", ""))
        if request.path.endswith("/models"):
            return web.json_response({"object": "list", "data": [{"id": "m1"}, {"id": "m2"}]})
        return web.json_response({"error": {"message": f"bad key {KEY}"}}, status=401)

    async with upstream(answer) as url, house_of(settings_in(tmp_path, SCRIPTED)) as house:
        draft = {"id": "far", "kind": "compatible", "model": "m1", "base_url": f"{url}/v1", "pasted": KEY}
        named = await house.call("POST", "/settings/names", draft)
        assert named["names"] == ["m1", "m2"] and seen[-1] == f"Bearer {KEY}"
        tested = await house.call("POST", "/settings/test", {"draft": draft})
        assert not tested["ok"] and KEY not in json.dumps(tested) and tested["steps"][1]["ok"] is None
        assert not (tmp_path / page_file.SECRETS_NAME).exists()  # a test keeps nothing
        listed = await house.call("POST", "/settings/models", draft)
        assert KEY not in json.dumps(listed)
        assert KEY not in json.dumps(await house.call("GET", "/settings"))
        row = next(row for row in listed["models"] if row["id"] == "far")
        reference = row["draft"]["key"]
        assert reference.startswith(f"file:{tmp_path}")
        kept = Path(reference.removeprefix("file:"))
        assert kept.read_text().strip() == KEY and stat.S_IMODE(kept.stat().st_mode) == 0o600
        assert KEY not in (tmp_path / page_file.FILE_NAME).read_text()
        # a change without a new key keeps the reference; removing the model deletes the key
        await house.call("PUT", "/settings/models/far", {**row["draft"], "model": "m2"})
        assert kept.exists()
        await house.call("DELETE", "/settings/models/far")
        assert not kept.exists()


async def test_a_redirect_is_not_followed_with_the_key(house_of: Any, tmp_path: Path) -> None:
    reached: list[str] = []

    async def other(request: web.Request) -> web.Response:
        reached.append(request.headers.get("authorization", ""))
        return web.json_response({})

    async with upstream(other) as elsewhere:

        async def redirect(request: web.Request) -> web.Response:
            raise web.HTTPTemporaryRedirect(elsewhere)

        async with upstream(redirect) as url, house_of(settings_in(tmp_path, SCRIPTED)) as house:
            draft = {"id": "x", "kind": "compatible", "model": "m", "base_url": url, "pasted": KEY}
            tested = await house.call("POST", "/settings/test", {"draft": draft})
            assert not tested["ok"] and "redirect" in tested["steps"][0]["detail"]
            await house.call("POST", "/settings/names", draft, status=503)
    assert reached == []


@pytest.mark.parametrize(
    ("draft", "words"),
    [
        ({"id": "a/b", "kind": "scripted"}, "A name has"),
        ({"id": "mine", "kind": "scripted"}, "already a model mine"),
        ({"id": "x", "kind": "acp"}, "Choose a kind"),
        ({"id": "x", "kind": "compatible", "model": "m"}, "Type the server's address"),
        ({"id": "x", "kind": "ollama"}, "Choose a model"),
        ({"id": "x", "kind": "ollama", "model": "m", "base_url": "file:///etc"}, "must look like"),
        ({"id": "x", "kind": "ollama", "model": "m", "base_url": "http://u:p@h/v1"}, "must look like"),
        ({"id": "x", "kind": "ollama", "model": "m", "key": "sk-plain"}, "env:NAME or file:PATH"),
        ({"id": "x", "kind": "ollama", "model": "m", "key": "env:NO_SUCH_VARIABLE"}, "is not set"),
        ({"id": "x", "kind": "ollama", "model": "m", "key": "file:/etc/passwd"}, "contains no key"),
        ({"id": "x", "kind": "ollama", "model": "m", "key": "file:relative"}, "absolute path"),
        ({"id": "x", "kind": "ollama", "model": "m", "pasted": "two words"}, "one word"),
        ({"id": "x", "kind": "ollama", "model": "a\nb"}, "one line"),
    ],
)
async def test_what_is_not_valid_is_one_line_and_writes_nothing(
    house_of: Any, tmp_path: Path, draft: dict[str, str], words: str
) -> None:
    async with house_of(settings_in(tmp_path, SCRIPTED)) as house:
        answer = await house.call("POST", "/settings/models", draft, status=400)
        assert words in answer["error"]["message"] and "\n" not in answer["error"]["message"]
    assert not (tmp_path / page_file.FILE_NAME).exists()
    assert not (tmp_path / page_file.SECRETS_NAME).exists()


async def test_other_origins_and_strangers_are_refused(house_of: Any, tmp_path: Path) -> None:
    async with house_of(settings_in(tmp_path, SCRIPTED)) as house:
        draft = {"id": "x", "kind": "scripted"}
        evil = {"origin": "http://evil.example"}
        await house.call("POST", "/settings/models", draft, status=403, headers=evil)
        for method, path in (("GET", "/settings/folders?path=/"), ("POST", "/settings/models")):
            await house.call(method, path, draft, status=401, headers={"x-toolwire-page": "wrong"})


async def test_a_model_that_an_alias_names_cannot_be_removed(house_of: Any, tmp_path: Path) -> None:
    page_file.write(
        tmp_path / page_file.FILE_NAME, page_file.PageSettings("", {"p": {"backend": "scripted"}})
    )
    async with house_of(settings_in(tmp_path, SCRIPTED + '[aliases]\n"gpt-4o" = "p"\n')) as house:
        answer = await house.call("DELETE", "/settings/models/p", status=400)
        assert 'The alias "gpt-4o" refers to p.' in answer["error"]["message"]


async def test_a_shared_store_locks_the_page(house_of: Any, tmp_path: Path) -> None:
    settings = settings_in(tmp_path, SCRIPTED)
    object.__setattr__(settings, "page_file", "")
    async with house_of(settings) as house:
        assert "no folder" in (await house.call("GET", "/settings/models"))["locked"]
        await house.call("POST", "/settings/models", {"id": "x", "kind": "scripted"}, status=400)


# --- the vault's folder


async def test_the_vault_folder_is_chosen_kept_and_opened(house_of: Any, tmp_path: Path) -> None:
    for name in ("notes", "notes-old", ".hidden"):
        (tmp_path / name).mkdir()
    (tmp_path / "notes.txt").write_text("a file")
    os.symlink("/", tmp_path / "notes-root")
    async with house_of(settings_in(tmp_path, SCRIPTED + "[vault]\nenabled = true\n")) as house:
        found = await house.call("GET", f"/settings/folders?path={tmp_path}/no")
        assert [one["name"] for one in found["folders"]] == ["notes", "notes-old", "notes-root"]
        assert found["parent"] == str(tmp_path.parent)
        inside = await house.call("GET", f"/settings/folders?path={tmp_path}/")
        assert ".hidden" not in [one["name"] for one in inside["folders"]]
        for wrong, words in (
            ("notes", "whole path"),
            (f"{tmp_path}/none", "does not exist"),
            (f"{tmp_path}/notes.txt", "is not a folder"),
            (f"{tmp_path}/notes-root", "too broad"),
            (f"{tmp_path}/notes/../../../../../../../../..", "too broad"),
            ("/" + "x" * 2000, "at most"),
        ):
            answer = await house.call("PUT", "/settings/vault", {"root": wrong}, status=400)
            assert words in answer["error"]["message"], answer
        await house.call("PUT", "/settings/vault", {"root": f"{tmp_path}/notes"})
        vault = (await house.call("GET", "/settings"))["vault"]
        assert vault["root"] == str(tmp_path / "notes") and vault["open"] and vault["origin"] == "page"
    assert settings_in(tmp_path, SCRIPTED).vault.root == str(tmp_path / "notes")
    own = settings_in(tmp_path, SCRIPTED + '[vault]\nroot = "/elsewhere"\n')
    assert own.vault.root == "/elsewhere"
    async with house_of(own) as house:
        answer = await house.call("PUT", "/settings/vault", {"root": f"{tmp_path}/notes"}, status=400)
        assert "vault.root is set in" in answer["error"]["message"]


async def test_a_list_of_folders_is_bounded(
    house_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from toolwire.surfaces.web import folders

    for number in range(30):
        (tmp_path / "many" / f"{number:02}").mkdir(parents=True)
    monkeypatch.setattr(folders, "MOST_FOLDERS", 10)
    async with house_of(settings_in(tmp_path, SCRIPTED)) as house:
        found = await house.call("GET", f"/settings/folders?path={tmp_path}/many/")
        assert len(found["folders"]) == 10 and found["more"]
