"""`--allow` rules for the tools of MCP servers have the words of the rules in the settings."""

from __future__ import annotations

from typing import Any

import pytest

from toolwire.settings.types import ConfigError
from toolwire.tools import rules
from toolwire.tools.contract import Approval, Preview

KNOWN = ("vault_search", "file_read", "files__list_directory", "files__read_text_file", "web__fetch")


def asked(tool: str, arguments: dict[str, Any], stage: Any = "run") -> Approval:
    return Approval("appr_1", 0, 1, "", "s", "ask", "m", tool, stage, arguments, Preview(), "t")


@pytest.mark.parametrize(
    ("rule", "tool", "arguments", "allowed"),
    [
        ("files__list_*", "files__list_directory", {"path": "/"}, True),
        ("files__list_*", "files__read_text_file", {"path": "/"}, False),
        ("files__*", "web__fetch", {}, False),
        ("files__read_text_file path=/srv/** *", "files__read_text_file", {"path": "/srv/a"}, True),
        ("files__read_text_file path=/srv/** *", "files__read_text_file", {"path": "/srv/../a"}, False),
        ("files__read_text_file path=/srv/**", "files__read_text_file", {"path": "/srv/a", "x": 1}, False),
        ('web__fetch {"url": "a"}', "web__fetch", {"url": "a"}, True),
    ],
)
def test_a_rule_allows_the_calls_that_its_words_allow(
    rule: str, tool: str, arguments: dict[str, Any], allowed: bool
) -> None:
    decision, by = rules.decision(rules.parse(["vault_search", rule], KNOWN), asked(tool, arguments), None)
    assert decision.approved == decision.standing == allowed
    assert by == (f"rule {rule}" if allowed else "no rule")


def test_a_rule_shares_no_result_that_a_person_is_to_see_first() -> None:
    (rule,) = rules.parse(["files__list_*"], KNOWN)
    assert not rules.decision([rule], asked("files__list_directory", {}, "share"), None)[0].approved


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("files__lst_directory", "did you mean files__list_directory"),
        ("files__list_* path", "--allow: the rule 'files__list_* path': path is not a condition"),
        ("other__*", "there is no tool other__*"),
    ],
)
def test_a_rule_that_is_wrong_is_one_clear_line(rule: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rules.parse([rule], KNOWN)
    assert message in str(caught.value) and "\n" not in str(caught.value)
