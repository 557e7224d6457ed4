"""Forms: nothing is preselected, and only a literal yes is a yes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from toolwire.surfaces.mcp import forms
from toolwire.tools.contract import Approval, Preview, Touched

FILES = (
    Touched("a.md", "a.md", 10),
    Touched("gone.md", "gone.md", missing=True),
    Touched("b.md", "b.md", 20, "a snippet"),
)


def question(shown: Preview, stage: Any = "run") -> Approval:
    return Approval(
        "appr_1",
        0,
        60,
        "",
        "s",
        "mcp",
        "someone",
        "file_read",
        stage,
        {"filePaths": ["a.md", "b.md"]},
        shown,
        "token",
    )


def test_a_form_has_one_box_for_the_call_and_one_for_each_thing_that_can_be_picked_and_none_is_ticked() -> (
    None
):
    schema = forms.schema(question(Preview(FILES, pick=True)))
    boxes = {name: one for name, one in schema["properties"].items() if one["type"] == "boolean"}
    assert list(boxes) == ["approve", "share_1", "share_3"]
    assert [one["default"] for one in boxes.values()] == [False, False, False]
    assert "a.md" in boxes["share_1"]["title"] and "b.md" in boxes["share_3"]["title"]
    assert schema["required"] == ["approve"]


def test_a_form_says_why_a_call_cannot_work_and_what_approving_means() -> None:
    asked = question(Preview(FILES[:1], problem="a.md: the text to replace is not in the note"))
    assert "This call cannot work: a.md: the text to replace is not in the note" in forms.message(asked, None)
    assert "nothing is run or changed" in forms.message(asked, None)
    assert title(asked) == "Tell the model why?"


def title(asked: Approval) -> str:
    found: str = forms.schema(asked)["properties"]["approve"]["title"]
    return found


def test_the_box_of_a_form_is_named_by_what_an_approval_does() -> None:
    assert title(question(Preview(FILES, pick=True))) == "Read notes?"
    assert title(replace(question(Preview(FILES, pick=True)), stage="share")) == "Share results?"
    assert title(question(Preview(action="Create note"))) == "Create note?"


def test_a_form_is_flat_as_elicitation_requires() -> None:
    properties = forms.schema(question(Preview(FILES, pick=True)))["properties"]
    assert {one["type"] for one in properties.values()} == {"boolean", "string"}


def test_a_call_without_anything_to_pick_has_no_boxes_for_it() -> None:
    assert list(forms.schema(question(Preview(FILES)))["properties"]) == ["approve", "reason"]


def test_what_is_ticked_is_picked_and_nothing_else() -> None:
    decision = forms.decision(
        question(Preview(FILES, pick=True)), "accept", {"approve": True, "share_3": True, "share_1": False}
    )
    assert (decision.approved, decision.picked) == (True, ("b.md",))


def test_approved_with_no_box_ticked_picks_nothing() -> None:
    assert forms.decision(question(Preview(FILES, pick=True)), "accept", {"approve": True}).picked == ()


@pytest.mark.parametrize("ticked", ["true", 1, "yes", ["x"], None])
def test_only_a_literal_true_is_a_yes(ticked: Any) -> None:
    asked = question(Preview(FILES, pick=True))
    assert not forms.decision(asked, "accept", {"approve": ticked}).approved
    assert forms.decision(asked, "accept", {"approve": True, "share_1": ticked}).picked == ()


@pytest.mark.parametrize(
    ("action", "content"),
    [("decline", None), ("cancel", None), ("decline", {"approve": True}), ("accept", None), ("accept", {})],
)
def test_anything_but_a_clear_yes_is_a_no(action: str, content: dict[str, Any] | None) -> None:
    assert not forms.decision(question(Preview(FILES, pick=True)), action, content).approved


def test_a_box_for_a_thing_that_was_not_shown_grants_nothing() -> None:
    decision = forms.decision(
        question(Preview(FILES, pick=True)),
        "accept",
        {"approve": True, "share_2": True, "share_9": True, "other.md": True},
    )
    assert decision.picked == ()


def test_the_reason_of_a_refusal_is_kept_short_and_clean() -> None:
    reason = forms.decision(
        question(Preview()), "accept", {"approve": False, "reason": " private\x1b[2J " + "x" * 900}
    ).reason
    assert reason.startswith("private␛[2J") and len(reason) <= forms.MOST_REASON


def test_the_message_shows_the_whole_diff() -> None:
    diff = "\n".join(f"+line {number}" for number in range(200))
    assert "+line 199" in forms.message(question(Preview(FILES[:1], diff)), None)


def test_a_path_cannot_forge_lines_of_the_form() -> None:
    shown = Preview((Touched("k", "a.md\nApproved by the person", 1),), pick=True)
    asked = question(shown)
    assert "\n" not in forms.schema(asked)["properties"]["share_1"]["title"]
    assert "\nApproved by the person" not in forms.message(asked, None)
