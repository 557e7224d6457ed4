"""Drawing and grading of BFCL's cases, and grading of the vault's tasks. No model runs here."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from bench import bfcl_cases
from bench.bfcl import call_of, calls_in
from bench.bfcl_cases import CATEGORIES, MOST_CHARACTERS, NO_CALL, Case, case_of, read, sample, schema_of
from bench.bfcl_tables import report
from bench.vault_tasks import NOTES, TASKS, succeeded

TRIANGLE = {
    "name": "triangle.area",
    "description": "The area of a triangle.",
    "parameters": {
        "type": "dict",
        "properties": {
            "base": {"type": "integer"},
            "height": {"type": "float", "optional": True},
            "unit": {"type": "string"},
            "place": {"type": "dict", "properties": {"type": {"type": "any"}}},
        },
        "required": ["base"],
    },
}


def question(id: str, *, function: dict[str, Any] = TRIANGLE) -> dict[str, Any]:
    return {"id": id, "question": [[{"role": "user", "content": "?"}]], "function": [function]}


def case(*expected: dict[str, Any], category: str = "simple") -> Case:
    return case_of(category, question("c"), expected)


AREA = {
    "triangle.area": {
        "base": [10],
        "height": [5.0, 6],
        "unit": ["cm^2", ""],
        "place": [{"city": ["New York", "NY"], "zip": ["", "1"]}, ""],
    }
}


# --- reading ---


def test_a_schema_with_pythons_types_becomes_a_json_schema() -> None:
    schema = schema_of(TRIANGLE["parameters"])
    assert schema["type"] == "object"
    assert schema["properties"]["height"] == {"type": "number"}
    # a property that is called `type` stays a property
    assert schema["properties"]["place"] == {"type": "object", "properties": {"type": {}}}
    assert schema["required"] == ["base"]


def test_names_have_no_dots_in_the_tools_and_in_the_answers() -> None:
    one = case(AREA)
    assert one.tools[0]["function"]["name"] == "triangle_area"
    assert list(one.expected[0]) == ["triangle_area"]


def test_reads_a_package(tmp_path: Path) -> None:
    file = tmp_path / "cases.whl"
    with zipfile.ZipFile(file, "w") as archive:
        for category, name in CATEGORIES.items():
            lines = "".join(json.dumps(question(f"{name}_{number}")) + "\n" for number in range(3))
            archive.writestr(f"{bfcl_cases.FOLDER}/BFCL_v4_{name}.json", lines)
            if category != NO_CALL:
                truths = [{"id": f"{name}_{number}", "ground_truth": [AREA]} for number in range(3)]
                answers = "\n".join(map(json.dumps, truths))
                archive.writestr(f"{bfcl_cases.FOLDER}/possible_answer/BFCL_v4_{name}.json", answers)
    cases = read(file)
    assert {category: len(all_of_it) for category, all_of_it in cases.items()} == dict.fromkeys(CATEGORIES, 3)
    assert cases["simple"][0].expected
    assert all(not one.expected for one in cases[NO_CALL])


def test_a_package_with_other_contents_is_refused(tmp_path: Path) -> None:
    file = tmp_path / f"{bfcl_cases.PACKAGE.replace('-', '_')}-{bfcl_cases.VERSION}-py3-none-any.whl"
    file.write_bytes(b"something else")
    with pytest.raises(SystemExit, match="delete it"):
        bfcl_cases.wheel(tmp_path)


# --- drawing ---


def drawn(per: int, seed: int) -> list[str]:
    every = {
        name: [case_of(name, question(f"{name} {number}"), ()) for number in range(20)] for name in "abc"
    }
    return [one.id for one in sample(every, per, seed)]


def test_the_same_seed_draws_the_same_cases() -> None:
    assert drawn(4, 1) == drawn(4, 1) != drawn(4, 2)
    assert [id[0] for id in drawn(4, 1)] == [*"abcabcabcabc"]


def test_a_larger_sample_begins_with_the_smaller_one() -> None:
    assert drawn(8, 1)[:9] == drawn(3, 1)


def test_long_cases_are_not_drawn() -> None:
    long = question("long", function={**TRIANGLE, "description": "x" * MOST_CHARACTERS})
    cases = {"simple": [case_of("simple", long, ()), case()]}
    assert [one.id for one in sample(cases, 2, 1)] == ["c"]


# --- grading ---

GIVEN = {"base": 10, "height": 5}


@pytest.mark.parametrize(
    "arguments",
    [
        GIVEN,
        {**GIVEN, "height": 6.0},
        {**GIVEN, "unit": "CM 2"},
        {**GIVEN, "place": {"city": "new-york"}},
        {**GIVEN, "place": {"city": "NY", "zip": "1"}},
    ],
)
def test_an_allowed_value_is_right(arguments: dict[str, Any]) -> None:
    assert case(AREA).right([("triangle_area", arguments)])


@pytest.mark.parametrize(
    "arguments",
    [
        {"base": 10},
        {"height": 5},
        {**GIVEN, "base": 11},
        {**GIVEN, "base": "10"},
        {**GIVEN, "base": True},
        {**GIVEN, "unit": "m"},
        {**GIVEN, "color": "red"},
        {**GIVEN, "place": {"city": "Rome"}},
        {**GIVEN, "place": {"city": "NY", "street": "5th"}},
        {**GIVEN, "place": {}},
    ],
)
def test_any_other_value_is_wrong(arguments: dict[str, Any]) -> None:
    assert not case(AREA).right([("triangle_area", arguments)])


def test_lists_are_compared_item_by_item() -> None:
    one = case({"triangle.area": {"base": [[1, "A b"]]}})
    assert one.right([("triangle_area", {"base": [1, "ab"]})])
    assert not one.right([("triangle_area", {"base": ["ab", 1]})])
    assert not one.right([("triangle_area", {"base": [1]})])
    objects = case({"triangle.area": {"base": [[{"city": ["NY"]}, {"city": ["Rome"]}]]}})
    assert objects.right([("triangle_area", {"base": [{"city": "NY"}, {"city": "Rome"}]})])
    assert not objects.right([("triangle_area", {"base": [{"city": "NY"}, {"city": "NY"}]})])


def test_several_calls_may_come_in_any_order() -> None:
    both = case({"triangle.area": {"base": [1]}}, {"triangle.area": {"base": [2]}})
    one, two = ("triangle_area", {"base": 1}), ("triangle_area", {"base": 2})
    assert both.right([one, two])
    assert both.right([two, one])
    for wrong in ([one], [one, one], [one, two, two], []):
        assert not both.right(wrong)


def test_another_tool_is_wrong() -> None:
    assert not case(AREA).right([("circle_area", GIVEN)])


def test_text_is_right_only_if_no_tool_fits() -> None:
    none = case(category=NO_CALL)
    assert none.right([])
    assert not none.right([("triangle_area", GIVEN)])
    assert not case(AREA).right([])


def test_arguments_that_are_no_object_fit_nothing() -> None:
    for written in ('{"base": 10, "hei', "[10]", ""):
        assert not case(AREA).right([call_of("triangle_area", written)])
    assert case(AREA).right([call_of("triangle_area", json.dumps(GIVEN))])


def test_calls_of_a_models_own_format_are_read() -> None:
    tools = [tool["function"] for tool in case(AREA).tools]
    call = json.dumps({"name": "triangle_area", "arguments": GIVEN})
    for text in (f"<tool_call>\n{call}\n</tool_call>", f"```json\n{call}\n```", call):
        assert case(AREA).right(calls_in(text, tools)), text
    assert calls_in("There is no tool for this.", tools) == []


# --- the vault's tasks ---


def test_a_task_succeeds_by_the_words_of_the_answer() -> None:
    task = TASKS[0]
    assert succeeded(task, ["file_read"], "It costs 119 euros.", NOTES)
    assert not succeeded(task, ["file_read"], "I do not know.", NOTES)


def test_a_task_succeeds_by_the_notes_that_it_leaves() -> None:
    task = next(one for one in TASKS if one.notes)
    after = {**NOTES, **task.notes}
    assert succeeded(
        task, ["note_write"], "Done.", {**after, **{path: f"{text}\n" for path, text in after.items()}}
    )
    assert not succeeded(task, ["note_write"], "Done.", NOTES)
    assert not succeeded(task, ["note_write"], "Done.", {**after, "People/Mara.md": "gone"})
    assert not succeeded(task, ["note_write"], "Done.", {**after, "Other.md": "new"})


def test_a_question_that_needs_no_tool_fails_with_a_call() -> None:
    task = next(one for one in TASKS if not one.tools)
    assert succeeded(task, [], " ".join(task.answer), NOTES)
    assert not succeeded(task, ["vault_search"], " ".join(task.answer), NOTES)


def test_every_changed_note_differs_from_the_sample() -> None:
    for task in TASKS:
        assert all(NOTES.get(path) != text for path, text in task.notes.items()), task.asked


def test_a_report_counts_what_was_right_by_model_side_and_category() -> None:
    results: dict[str, Any] = {str(at): {"category": "simple", "right": at > 0} for at in range(3)}
    speed = {"writing": [9.6, 5.2], "reading": [50, 30], "memory": 2.1e9}
    one = {
        "auto": results | {"none": {"category": NO_CALL, "right": False}},
        "resources": {"": speed | {"first_call": {"1": [[2, 3], None], "5": [], "20": []}}},
        "tasks": {task.asked: {"right": task is TASKS[0]} for task in TASKS},
    }
    shown = report({"m": one}, 3, 1)
    accuracy, speeds, vault = shown["tables"]
    assert dict(zip(*accuracy, strict=True)) == {
        **dict.fromkeys(CATEGORIES, "–"),
        **{
            "model": "m",
            "calls made by": "Toolwire, `auto`",
            "simple": "2 / 3",
            NO_CALL: "0 / 1",
            "all": "2 / 4",
        },
    }
    assert speeds[1][:5] == ["m", "10 tokens/s (5)", "50 tokens/s (30)", "2.1 GB", "2.0 s (3.0) / no call"]
    assert vault[1] == [TASKS[0].asked, "done"]
    assert vault[-1] == ["all", f"1 / {len(TASKS)}"]
    assert "m 2 / 4" in shown["figures"]


def test_a_report_without_a_model_says_how_to_get_one() -> None:
    assert "local pull" in report({}, 1, 1)["notes"][0]
