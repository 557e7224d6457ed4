"""The catalogue is the manifest of the contract tests: every check has a test, and every test a check."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolwire.conform.engine import BY_ID, CATALOGUE, chosen
from toolwire.conform.exchange import FAMILIES
from toolwire.conform.judging import OF_ERRORS, OF_USAGE, WireVerdict
from toolwire.conform.problems import SHAPE, SUBJECTS, UNREADABLE
from toolwire.conform.questions import QUESTIONS

TESTS = Path(__file__).parents[1]
CONTRACT = [
    TESTS / "conform" / name for name in ("test_scenarios.py", "test_peer_bugs.py", "test_conform_checks.py")
]
"""Modules that test the wire as clients see it: each of their tests names its checks."""
JUDGE = TESTS.parent / "src" / "toolwire" / "conform" / "judge"
OF_REPAIR = {"type_repeated", "null_key", "calls_mixed", "items_mixed", UNREADABLE}
OPENAI_SCHEMAS = (
    "ChatCompletionAllowedToolsChoice",
    "ChatCompletionFunctionCallOption",
    "ChatCompletionMessageToolCall",
    "ChatCompletionMessageToolCallChunk",
    "ChatCompletionRequestFunctionMessage",
    "ChatCompletionStreamOptions",
    "ChatCompletionStreamResponseDelta",
    "ChatCompletionToolChoiceOption",
    "CompletionUsage",
    "CreateChatCompletionResponse",
    "CreateChatCompletionStreamResponse",
    "CreateResponse",
    "CustomToolCall",
    "Error",
    "ErrorResponse",
    "FunctionObject",
    "FunctionToolCall",
    "ListModelsResponse",
    "Model",
    "ModelResponseProperties",
    "ParallelToolCalls",
    "Response",
    "ResponseCompletedEvent",
    "ResponseCreatedEvent",
    "ResponseFormatJsonSchema",
    "ResponseFunctionCallArgumentsDoneEvent",
    "ResponseItemList",
    "ResponseOutputItemAddedEvent",
    "ResponseStreamEvent",
    "ResponseUsage",
    "TextResponseFormatJsonSchema",
    "ToolChoiceAllowed",
    "ToolChoiceParam",
)
"""Schemas of OpenAI's OpenAPI file that checks may name as a source."""
OPENAI_PATHS = (
    "/chat/completions",
    "/models/{model}",
    "/responses",
    "/responses/{response_id}",
    "/responses/{response_id}/input_items",
)


def marks(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """The ids that `pytest.mark.check(…)` names literally, with their lines."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "check"
            and "mark" in ast.dump(node.func.value)
        ):
            for argument in node.args:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield argument.value, node.lineno


def rows_of(path: Path, table: str) -> set[str]:
    """The literal keys of a test module's table; those of `alike` count for every API."""
    tree = ast.parse(path.read_text("utf-8"))
    found: set[str] = set()
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.AnnAssign)
            and isinstance(node.target, ast.Name)
            and node.target.id == table
            and isinstance(node.value, ast.Dict)
        ):
            found |= {
                key.value
                for key in node.value.keys
                if isinstance(key, ast.Constant) and isinstance(key.value, str)
            }
        if isinstance(node, ast.FunctionDef) and node.name == "alike":
            shared = [key for inner in ast.walk(node) if isinstance(inner, ast.Dict) for key in inner.keys]
            found |= {
                f"{api}.{key.value}"
                for api in FAMILIES[1:]
                for key in shared
                if isinstance(key, ast.Constant) and isinstance(key.value, str)
            }
    return found


def test_every_check_has_a_test_that_it_passes_and_that_it_can_fail() -> None:
    assert rows_of(TESTS / "conform" / "test_conform_checks.py", "DAMAGES") == set(BY_ID)


def test_no_test_names_a_check_that_is_not_there() -> None:
    wrong = [
        f"{path.relative_to(TESTS)}:{line}: {id}"
        for path in sorted(TESTS.rglob("test_*.py"))
        for id, line in marks(ast.parse(path.read_text("utf-8")))
        if id not in BY_ID
    ]
    assert wrong == []


@pytest.mark.parametrize("path", CONTRACT, ids=lambda path: path.stem)
def test_every_contract_test_names_a_check(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    if any(
        isinstance(node, ast.Assign)
        and "pytestmark" in ast.dump(node.targets[0])
        and "check" in ast.dump(node.value)
        for node in tree.body
    ):
        return
    silent = [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not any("attr='check'" in ast.dump(decorator) for decorator in node.decorator_list)
        and "every_check" not in node.name
    ]
    assert silent == []


def codes_of(tree: ast.AST) -> Iterator[str]:
    """The problem codes of a judge module: arguments of `add`, `Problem` and `check`, and verdicts."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = (
                node.func.attr
                if isinstance(node.func, ast.Attribute)
                else node.func.id
                if isinstance(node.func, ast.Name)
                else ""
            )
            name = name.removeprefix("_")
            place = {"add": 0, "say": 0, "Problem": 0, "check": 1}.get(name)
            given = node.args[place] if place is not None and len(node.args) > place else None
            if isinstance(given, ast.IfExp):
                yield from (
                    branch.value
                    for branch in (given.body, given.orelse)
                    if isinstance(branch, ast.Constant) and isinstance(branch.value, str)
                )
            elif isinstance(given, ast.Constant) and isinstance(given.value, str):
                yield given.value
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and re.fullmatch(r"[a-z]+_arguments", node.value)
        ):
            yield node.value


def test_every_problem_code_belongs_to_a_check() -> None:
    said = {
        code
        for path in JUDGE.glob("*.py")
        if path.stem != "damage"
        for code in codes_of(ast.parse(path.read_text("utf-8")))
    }
    said |= {"item_id", "content_index", "summary_index"}  # the judge derives these from keys
    codes = said - {*SHAPE} | set(SUBJECTS.values()) | {"shape", "unknown_key", *OF_REPAIR}
    claimed = {
        topic for check in CATALOGUE if isinstance(check.judge, WireVerdict) for topic in check.judge.topics
    }
    assert len(codes) > 50
    assert codes - claimed - {*OF_USAGE, *OF_ERRORS} == set()
    assert claimed - codes == set()


def test_a_check_states_its_demand_its_source_and_the_harm() -> None:
    for check in CATALOGUE:
        assert check.demands and check.source and check.fails and check.asks
        assert re.fullmatch(r"(http|chat|responses|messages)(\.[a-z-]+){1,2}", check.id)
        assert not check.demands.endswith(".") and len(check.demands) < 160


def test_every_question_is_asked_for_a_check() -> None:
    asked = {name for check in CATALOGUE for name in check.asks}
    before = {name for question in QUESTIONS.values() for name in question.after}
    assert set(QUESTIONS) - asked - before == set()


def test_every_schema_that_a_check_points_to_is_one_of_openais() -> None:
    for check in CATALOGUE:
        for name in re.findall(r"#/components/schemas/(\w+)", check.source):
            assert name in OPENAI_SCHEMAS, (check.id, name)
        for path in re.findall(r"OpenAPI (/[\w/{}]+)", check.source):
            assert path in OPENAI_PATHS, (check.id, path)


def test_checks_are_chosen_by_id_and_by_the_beginning_of_one() -> None:
    assert [check.id for check in chosen("chat.stream.index")] == ["chat.stream.index"]
    assert {check.id for check in chosen("http.cors, chat.parallel")} == {
        *(
            "http.cors.preflight",
            "http.cors.answers",
            "http.cors.errors",
            "chat.parallel",
            "chat.parallel.off",
        )
    }
    assert chosen("") == CATALOGUE
    assert {check.family for check in chosen("", "messages")} == {"messages"}
    assert [check.id for check in chosen("messages.cache", "messages")] == [
        "messages.cache",
        "messages.cache.counted",
    ]
    with pytest.raises(KeyError):
        chosen("chat.nothing")
    with pytest.raises(KeyError):
        chosen("chat.stream", "messages")


def test_the_page_lists_the_checks_as_they_are() -> None:
    import importlib.util

    spec = importlib.util.spec_from_file_location("conform_page", TESTS.parent / "docs" / "conform.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    held = (TESTS.parent / "docs" / "conform.md").read_text("utf-8")
    assert module.page(held) == held, "run python docs/conform.py"
    assert "Toolwire, the real Codex" in held and "LiteLLM" in held
