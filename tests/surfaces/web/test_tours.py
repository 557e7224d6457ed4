"""Tours in a running server: their own vault and model, the same approvals, nothing of the person's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from toolwire.backends.scripted.tour import MODEL, OPENING
from toolwire.surfaces.web import tours
from toolwire.surfaces.web.routes import enter_path


async def begun(house: Any) -> dict[str, Any]:
    state: dict[str, Any] = await house.call("POST", "/tours", {}, status=201)
    return state


async def question(house: Any, tour: str, tool: str, stage: str = "run") -> dict[str, Any]:
    async def look() -> Any:
        wanted = (tour, tool, stage)
        asked = await house.pending()
        return next((one for one in asked if (one["session"], one["tool"], one["stage"]) == wanted), None)

    found: dict[str, Any] = await house.until(look)
    return found


async def decide(house: Any, asked: dict[str, Any], approved: bool, **more: Any) -> None:
    body = {"token": asked["token"], "approved": approved, **more}
    await house.call("POST", f"/approvals/{asked['id']}/decision", body)


async def test_a_tour_needs_no_tool_calling_and_asks_like_any_conversation(
    open_house: Any, vault: Path
) -> None:
    async with open_house("say Hi.", on=False) as house:
        state = await begun(house)
        assert (state["model"], state["tour"], state["entries"][0]["text"]) == (MODEL, True, OPENING)
        assert state["entries"][1]["scripted"] == "scripted, for this tour"
        asked = await question(house, state["id"], "vault_search")
        assert asked["scripted"] == "scripted, for this tour" and asked["hint"].startswith("Step 1 of 5")
        assert asked["editable"] and not Path(asked["source"].removeprefix("vault:")).is_relative_to(vault)
        edited = {"query": "hotel", "limit": 10}
        shown = await house.call("POST", f"/approvals/{asked['id']}/preview", {"arguments": edited})
        await decide(house, asked, True, arguments=edited, seen=shown["digest"])
        share = await question(house, state["id"], "vault_search", "share")
        assert {one["path"] for one in share["shown"]["touched"]} >= {"Travel/Lisbon hotels.md"}
        assert share["hint"].startswith("Step 2 of 5")
        await decide(house, share, False)
        for tool in ("file_read", "note_edit", "note_write"):
            await decide(house, await question(house, state["id"], tool), False)
        ended = await house.ended(state["id"])
        assert [part["state"] for part in ended["entries"][1]["parts"] if part["type"] == "call"] == [
            "denied"
        ] * 4
        assert not (await house.call("GET", "/settings"))["tool_calling"]


async def test_the_model_of_a_tour_is_fixed_and_unlisted(open_house: Any) -> None:
    async with open_house("say Hi.") as house:
        id = (await begun(house))["id"]
        error = await house.call("PATCH", f"/conversations/{id}", {"model": "m"}, status=400)
        assert "its own scripted model" in json.dumps(error)
        await house.call("PATCH", f"/conversations/{id}", {"model": MODEL, "title": "My tour"})
        assert MODEL not in [one["id"] for one in (await house.call("GET", "/models"))["models"]]
        async with house.client.get(f"{house.url}/v1/models") as listed:
            assert MODEL not in await listed.text()


async def test_other_scripted_models_are_labelled(open_house: Any) -> None:
    async with open_house('call file_read {"filePaths": ["Tea.md"]}\n---\nsay Hi.', on=True) as house:
        id = (await house.call("POST", "/conversations", {"model": "m"}))["id"]
        await house.call("POST", f"/conversations/{id}/turns", {"text": "Hello"}, status=202)
        asked = await question(house, id, "file_read")
        assert (asked["scripted"], asked["hint"]) == ("scripted", "")
        await decide(house, asked, False)
        state = await house.ended(id)
        assert (state["tour"], state["entries"][1]["scripted"]) == (False, "scripted")


async def test_sample_vaults_are_deleted_with_their_tours_and_with_the_server(open_house: Any) -> None:
    async with open_house("say Hi.") as house:
        roots = []
        for _ in range(tours.OPEN + 2):
            state = await begun(house)
            asked = await question(house, state["id"], "vault_search")
            roots.append(Path(asked["source"].removeprefix("vault:")))
            await house.call("POST", f"/conversations/{state['id']}/stop")
        assert [root.is_dir() for root in roots] == [False, False] + [True] * tours.OPEN
        await house.call("DELETE", f"/conversations/{state['id']}")
        assert not roots[-1].exists()
        # A tour whose vault was closed goes on with a new one.
        first = (await house.call("GET", "/conversations?limit=500"))["conversations"][-1]["id"]
        await house.call("POST", f"/conversations/{first}/turns", {"text": "Go on."}, status=202)
        asked = await question(house, first, "vault_search")
        roots.append(Path(asked["source"].removeprefix("vault:")))
    assert not any(root.parent.exists() for root in roots)


async def test_turning_tool_calling_off_does_not_stop_a_tour(open_house: Any) -> None:
    async with open_house("say Hi.", on=True) as house:
        id = (await begun(house))["id"]
        asked = await question(house, id, "vault_search")
        await house.call("PUT", "/settings", {"tool_calling": False})
        await decide(house, asked, False)
        await question(house, id, "file_read")


async def test_the_one_time_link_can_lead_to_the_tour(open_house: Any) -> None:
    async with open_house("say Hi.") as house:
        link = house.url + enter_path(await house.pages.sessions.link()) + "&tour"
        for location in ("/ui/tour#page=", "/ui/tour"):  # the second time, the session is known
            async with house.client.get(link, allow_redirects=False) as response:
                assert response.status == 303 and response.headers["location"].startswith(location)
        async with house.client.get(f"{house.url}/ui/tour") as page:
            assert page.status == 200 and "text/html" in page.headers["content-type"]
