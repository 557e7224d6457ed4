"""The rules of an MCP server decide what they say, and nothing gets past them by being written otherwise."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolwire.settings.types import ConfigError
from toolwire.tools.mcp.policy import ACTIONS, Action, Policy, Rule, Ruling, exact_rule

FILES = Policy(
    deny=["write_file path=/srv/docs/.git/**", "* force=true", "delete_*"],
    ask=["move_file", "read_text_file path=/srv/docs/private/** *"],
    allow=["list_*", "read_text_file path=/srv/docs/** *", "grep path=/srv/docs/*.md pattern=*"],
)
WEB = Policy(
    deny=["fetch url=http://127.0.0.1/**", "fetch url=*://*.evil.com:*/** *", "open url=file:///etc/**"],
    allow=[
        "fetch url=https://api.github.com/repos/** max_length<=20000",
        "search url=https://example.com/find?q=* *",
        "open url=https://example.com/a *",
    ],
)
MAIL = Policy(
    deny=["send to=*@evil.com *", "send subject=*secret* *"],
    allow=[
        "send to=*@example.com",
        "send to=*@example.com cc=*@example.com body=*",
        "draft to!=*@evil.com *",
    ],
)
REPO = Policy(
    deny=["push options.force=true"],
    allow=[
        "issue repo=me/* title=* body=*",
        "log max_count<=50 max_count>0 repo=/srv/repo",
        "push options.force=false",
    ],
)


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


CASES: list[tuple[Policy, str, dict[str, Any], Action]] = [
    # tools
    (FILES, "list_directory", {"path": "/anything"}, "allow"),
    (FILES, "list", {}, "ask"),
    (FILES, "LIST_directory", {}, "ask"),
    (FILES, "move_file", {"source": "/srv/docs/a", "destination": "/srv/docs/b"}, "ask"),
    (FILES, "delete_file", {"path": "/srv/docs/a"}, "deny"),
    (FILES, "unknown", {}, "ask"),
    # paths
    (FILES, "read_text_file", {"path": "/srv/docs/a.md"}, "allow"),
    (FILES, "read_text_file", {"path": "/srv/docs/a.md", "head": 3}, "allow"),
    (FILES, "read_text_file", {"path": "/srv/docs"}, "allow"),
    (FILES, "read_text_file", {"path": "/srv/docs/"}, "allow"),
    (FILES, "read_text_file", {"path": "/srv/docs2/a.md"}, "ask"),
    (FILES, "read_text_file", {"path": "/srv/docs/../../etc/passwd"}, "ask"),
    (FILES, "read_text_file", {"path": "/srv/docs/./a.md"}, "ask"),
    (FILES, "read_text_file", {"path": "/srv/docs//a.md"}, "ask"),
    (FILES, "read_text_file", {"path": "//srv/docs/a.md"}, "ask"),
    (FILES, "read_text_file", {"path": "docs/a.md"}, "ask"),
    (FILES, "read_text_file", {"path": "~/docs/a.md"}, "ask"),
    (FILES, "read_text_file", {"path": "file:///srv/docs/a.md"}, "ask"),
    (FILES, "read_text_file", {"path": "/srv/docs/..\\..\\etc"}, "ask"),
    (FILES, "read_text_file", {"path": "/srv/docs/%2e%2e/%2e%2e/etc/passwd"}, "ask"),
    (FILES, "read_text_file", {"path": "/srv/docs/%252e%252e/etc"}, "ask"),
    (FILES, "read_text_file", {"path": "/srv/docs/..%2fetc"}, "ask"),
    (FILES, "read_text_file", {"path": "/srv/docs/a\0.md"}, "ask"),
    (FILES, "read_text_file", {"path": "/srv/docs/a\n"}, "ask"),
    (FILES, "read_text_file", {"path": "/srv/docs/．．/etc"}, "ask"),
    (FILES, "read_text_file", {"path": "/srv/docs/‥/etc"}, "ask"),
    (FILES, "read_text_file", {"path": "/srv/docs/..／etc"}, "ask"),
    (FILES, "read_text_file", {"path": "/srv/docs/a\u202egnp.md"}, "ask"),
    (FILES, "read_text_file", {"path": "/srv/docs/\ud800.md"}, "ask"),
    (FILES, "read_text_file", {"path": "/srv/docs/Résumé.md"}, "allow"),
    (FILES, "read_text_file", {"path": "/srv/docs/Re\u0301sume\u0301.md"}, "allow"),
    (FILES, "read_text_file", {"path": ["/srv/docs/a", "/srv/docs/b"]}, "allow"),
    (FILES, "read_text_file", {"path": ["/srv/docs/a", "/etc/passwd"]}, "ask"),
    (FILES, "read_text_file", {"path": [["/srv/docs/a"], [["/etc/passwd"]]]}, "ask"),
    (FILES, "read_text_file", {"path": ["/srv/docs/a", None]}, "ask"),
    (FILES, "read_text_file", {"path": "/srv/docs/a", "PATH": None}, "ask"),
    (FILES, "read_text_file", {"path": "/srv/docs/a."}, "ask"),
    (FILES, "read_text_file", {"path": "/srv/docs/.. "}, "ask"),
    (FILES, "read_text_file", {"path": "/srv/docs/..\u00a0"}, "ask"),
    (FILES, "read_text_file", {"path": "/srv/docs/‥\u1680"}, "ask"),
    (FILES, "read_text_file", {"path": "/srv/docs/..%20"}, "ask"),
    (FILES, "read_text_file", {"path": "/srv/docs/a%20b"}, "allow"),
    (FILES, "read_text_file", {"path": "/srv/docs/private /a"}, "ask"),
    (FILES, "read_text_file", {"path": []}, "ask"),
    (FILES, "read_text_file", {"path": {"value": "/srv/docs/a"}}, "ask"),
    (FILES, "read_text_file", {"path": 5}, "ask"),
    (FILES, "read_text_file", {"path": None}, "ask"),
    (FILES, "read_text_file", {}, "ask"),
    (FILES, "read_text_file", {"path": "/srv/docs/a", "Path": "/etc/passwd"}, "ask"),
    (FILES, "read_text_file", {"path": "/srv/docs/private/a"}, "ask"),
    (FILES, "read_text_file", {"path": "/srv/docs/" + "a" * 200_000}, "ask"),
    (FILES, "grep", {"path": "/srv/docs/a.md", "pattern": "line\nline"}, "allow"),
    (FILES, "grep", {"path": "/srv/docs/sub/a.md", "pattern": "x"}, "ask"),
    (FILES, "grep", {"path": "/srv/docs/a.md", "pattern": "x", "extra": None}, "ask"),
    (FILES, "grep", {"path": "/srv/docs/a.md"}, "ask"),
    # denied however it is written
    (FILES, "write_file", {"path": "/srv/docs/.git/config", "content": ""}, "deny"),
    (FILES, "write_file", {"path": "/srv/docs/.git"}, "deny"),
    (FILES, "write_file", {"path": "/srv/docs/.GIT/config"}, "deny"),
    (FILES, "write_file", {"path": "/srv/docs/.g\u200cit/config"}, "deny"),
    (FILES, "write_file", {"path": "/srv/docs/．git/config"}, "deny"),
    (FILES, "write_file", {"path": "/srv/docs/x/../.git/config"}, "deny"),
    (FILES, "write_file", {"path": ".git/config"}, "deny"),
    (FILES, "write_file", {"path": "/srv/docs/.git "}, "deny"),
    (FILES, "write_file", {"path": "/srv/docs/.git\u3000/config"}, "deny"),
    (FILES, "write_file", {"path": "/srv/docs/.git./config"}, "deny"),
    (FILES, "write_file", {"path ": "/srv/docs/.git/config"}, "deny"),
    (FILES, "write_file", {"PATH": "/srv/docs/.git/config"}, "deny"),
    (FILES, "write_file", {"path": ["/tmp/a", "/srv/docs/.git/config"]}, "deny"),
    (FILES, "write_file", {"path": "/srv/docs/%2egit/config"}, "deny"),
    (FILES, "write_file", {"path": "/srv/docs/.%67it/config"}, "deny"),
    (FILES, "write_file", {"path": "/srv/docs/.%2567%2569%74/config"}, "deny"),
    (FILES, "write_file", {"path": "/srv/docs/.％67it/config"}, "deny"),
    (FILES, "write_file", {"path": "/srv/docs/.%47IT/config"}, "deny"),
    (FILES, "write_file", {"path": "/srv/docs/a%" + "25" * 40_000 + "41"}, "deny"),
    (FILES, "write_file", {"path": "/srv/docs/100%/%C3%A9/a%20b"}, "ask"),
    (FILES, "write_file", {"path": "/srv/docs/b"}, "ask"),
    (FILES, "write_file", nested(3000), "deny"),
    (FILES, "any", {"force": True}, "deny"),
    (FILES, "any", {"force": "true"}, "deny"),
    (FILES, "any", {"force": 1}, "deny"),
    (FILES, "any", {"FORCE": True}, "deny"),
    (FILES, "any", {"force": [False, True]}, "deny"),
    (FILES, "any", {"force": False}, "ask"),
    (FILES, "any", {"force": None}, "ask"),
    (FILES, "list_x", {"force": True}, "deny"),
    (FILES, "any", {"x": {"force": True}}, "ask"),
    (FILES, "list_x", {"many": list(range(21_000))}, "deny"),
    # URLs
    (WEB, "fetch", {"url": "https://api.github.com/repos/a/b"}, "ask"),
    (WEB, "fetch", {"url": "https://api.github.com/repos/a/b", "max_length": 100}, "allow"),
    (WEB, "fetch", {"url": "HTTPS://API.GitHub.com:443/repos/a", "max_length": 1}, "allow"),
    (WEB, "fetch", {"url": "https://api.github.com./repos/a", "max_length": 1}, "allow"),
    (WEB, "fetch", {"url": "https://api.github.com/repos/a?page=2", "max_length": 1}, "allow"),
    (WEB, "fetch", {"url": "https://api.github.com/repos/%61", "max_length": 1}, "allow"),
    (WEB, "fetch", {"url": "http://api.github.com/repos/a", "max_length": 1}, "ask"),
    (WEB, "fetch", {"url": "https://api.github.com@evil.org/repos/a", "max_length": 1}, "deny"),
    (WEB, "fetch", {"url": "https://api.github.com:8443/repos/a", "max_length": 1}, "ask"),
    (WEB, "fetch", {"url": "https://api.github.com.evil.org/repos/a", "max_length": 1}, "ask"),
    (WEB, "fetch", {"url": "https://api.github.com/repos/../x", "max_length": 1}, "ask"),
    (WEB, "fetch", {"url": "https://api.github.com/repos/%2E%2e/x", "max_length": 1}, "ask"),
    (WEB, "fetch", {"url": "https://api.github.com/repos/..;/x", "max_length": 1}, "ask"),
    (WEB, "fetch", {"url": "https://api.github.com//repos/x", "max_length": 1}, "ask"),
    (WEB, "fetch", {"url": "https://api.github.com/repos/..%20", "max_length": 1}, "ask"),
    (WEB, "fetch", {"url": "https://api.github.com/repos/‥%C2%A0", "max_length": 1}, "ask"),
    (WEB, "fetch", {"url": "https://api.github.com/repos/a%20b", "max_length": 1}, "allow"),
    (WEB, "fetch", {"url": "https://api.github.com/repos/%ff", "max_length": 1}, "ask"),
    (WEB, "fetch", {"url": "https://api.github.com/gists/x", "max_length": 1}, "ask"),
    (WEB, "fetch", {"url": "https://api.github.com/repos/a", "max_length": True}, "ask"),
    (WEB, "fetch", {"url": "https://api.github.com/repos/a", "max_length": "1"}, "ask"),
    (WEB, "fetch", {"url": "https://api.github.com/repos/a", "max_length": 20001}, "ask"),
    (WEB, "fetch", {"url": "https://api.github.com/repos/a", "max_length": math.nan}, "ask"),
    (WEB, "fetch", {"url": "https://api.github.com/repos/a", "max_length": -math.inf}, "ask"),
    (WEB, "fetch", {"url": "https://api.github.com/repos/a", "max_length": -(10**400)}, "allow"),
    (WEB, "fetch", {"url": "https:api.github.com/repos/a", "max_length": 1}, "deny"),
    (WEB, "fetch", {"url": "https:\\\\api.github.com\\repos", "max_length": 1}, "deny"),
    (WEB, "fetch", {"url": "https://api。github。com/repos/a", "max_length": 1}, "deny"),
    (WEB, "fetch", {"url": "https://аpi.github.com/repos/a", "max_length": 1}, "deny"),
    (WEB, "fetch", {"url": " https://api.github.com/repos/a", "max_length": 1}, "deny"),
    (WEB, "fetch", {"url": "http://127.0.0.1/admin"}, "deny"),
    (WEB, "fetch", {"url": "http://127.0.0.1:80/admin"}, "deny"),
    (WEB, "fetch", {"url": "http://2130706433/admin"}, "deny"),
    (WEB, "fetch", {"url": "http://0x7f.0.0.1/admin"}, "deny"),
    (WEB, "fetch", {"url": "http://0177.0.0.1/admin"}, "deny"),
    (WEB, "fetch", {"url": "http://127.1/admin"}, "deny"),
    (WEB, "fetch", {"url": "http://[::ffff:127.0.0.1]/admin"}, "deny"),
    (WEB, "fetch", {"url": "http:///127.0.0.1/admin"}, "deny"),
    (WEB, "fetch", {"url": "http://user@127.0.0.1/admin"}, "deny"),
    (WEB, "fetch", {"url": "http://a.b.EVIL.com:8080/x"}, "deny"),
    (WEB, "fetch", {"url": "wss://a.ｅvil.com"}, "deny"),
    (WEB, "open", {"url": "file://localhost/etc/passwd"}, "deny"),
    (WEB, "open", {"url": "FILE://127.0.0.1/etc/passwd"}, "deny"),
    (WEB, "open", {"url": "file:/etc/passwd"}, "deny"),
    (WEB, "open", {"url": "file://localhost/srv/a"}, "ask"),
    (WEB, "fetch", {"url": "https://example.org/"}, "ask"),
    (WEB, "search", {"url": "https://example.com/find?q=cats"}, "allow"),
    (WEB, "search", {"url": "https://example.com/find?q=cats&delete=1"}, "ask"),
    (WEB, "search", {"url": "https://example.com/find"}, "ask"),
    (WEB, "open", {"url": "https://example.com/a"}, "allow"),
    (WEB, "open", {"url": "https://example.com/a/"}, "allow"),
    (WEB, "open", {"url": "https://example.com/a?delete=1"}, "ask"),
    (WEB, "open", {"url": "https://example.com/a#x"}, "ask"),
    # text
    (MAIL, "send", {"to": "a@example.com"}, "allow"),
    (MAIL, "send", {"to": "a@EXAMPLE.com"}, "ask"),
    (MAIL, "send", {"to": "a@example.com", "bcc": "e@elsewhere.org"}, "ask"),
    (MAIL, "send", {"to": "a@example.com", "cc": "b@example.com", "body": "one\ntwo\0"}, "allow"),
    (MAIL, "send", {"to": "a@elsewhere.org\n@example.com"}, "deny"),
    (MAIL, "send", {"to": "a@elsewhere.org\u2028@example.com"}, "deny"),
    (MAIL, "send", {"to": ["a@example.com", "e@elsewhere.org"]}, "ask"),
    (MAIL, "send", {"to": ["a@example.com", "e@evil.com"]}, "deny"),
    (MAIL, "send", {"to": "e@EVIL.COM"}, "deny"),
    (MAIL, "send", {"to": "e@ｅｖｉｌ．ｃｏｍ"}, "deny"),
    (MAIL, "send", {"to": "e@ev\u00adil.com"}, "deny"),
    (MAIL, "send", {"to": "e@evil.com "}, "deny"),
    (MAIL, "send", {"to": "e@evil.com\u00a0"}, "deny"),
    (MAIL, "send", {"To ": "e@evil.com"}, "deny"),
    (MAIL, "send", {"to": "a@example.com "}, "ask"),
    (MAIL, "draft", {"to": ["a@example.com", None]}, "ask"),
    (MAIL, "send", {"to": "a\u200b@example.com"}, "ask"),
    (MAIL, "send", {"to": "a@example.com", "subject": "our SECRET plan"}, "deny"),
    (MAIL, "send", {"to": "a@example.com", "subject": None}, "ask"),
    (MAIL, "send", {"to": "e%40%65vil.com"}, "deny"),
    (MAIL, "send", {"to": "a@example.com", "subject": "our %73ecret plan"}, "deny"),
    (MAIL, "send", {"to": "a@example.com", "subject": "50% off"}, "ask"),
    (MAIL, "send", {"to": "a@example.com", "to.bcc": "e@elsewhere.org"}, "ask"),
    (MAIL, "send", {"to": "a@example.com", "cc": {"body.bcc": "e@elsewhere.org"}}, "ask"),
    (MAIL, "draft", {"to": "a@example.com"}, "allow"),
    (MAIL, "draft", {"to": "a@EVIL.com"}, "ask"),
    (MAIL, "draft", {"to": 7}, "ask"),
    (MAIL, "draft", {}, "ask"),
    # names with slashes, nested names, numbers
    (REPO, "issue", {"repo": "me/notes", "title": "a", "body": "b\nc"}, "allow"),
    (REPO, "issue", {"repo": "me/../you/notes", "title": "a", "body": "b"}, "ask"),
    (REPO, "issue", {"repo": "me/%2e%2e/you", "title": "a", "body": "b"}, "ask"),
    (REPO, "issue", {"repo": "me//you", "title": "a", "body": "b"}, "ask"),
    (REPO, "issue", {"repo": "me/..\u00a0", "title": "a", "body": "b"}, "ask"),
    (REPO, "issue", {"repo": "me/x", "title": "up/‥ ", "body": "b"}, "allow"),
    (REPO, "log", {"repo": "/srv/repo", "max_count": 10}, "allow"),
    (REPO, "log", {"repo": "/srv/repo", "max_count": 10.0}, "allow"),
    (REPO, "log", {"repo": "/srv/repo", "max_count": 0}, "ask"),
    (REPO, "log", {"repo": "/srv/repo", "max_count": [10, 99]}, "ask"),
    (REPO, "push", {"options": {"force": True}}, "deny"),
    (REPO, "push", {"options.force": True}, "deny"),
    (REPO, "push", {"options": '{"force": true}'}, "deny"),
    (REPO, "push", {"options": [{"force": True}]}, "deny"),
    (REPO, "push", {"options": {"force": False}}, "allow"),
    (REPO, "push", {"options": {"force": False, "mirror": True}}, "ask"),
    (REPO, "push", {"options": None}, "ask"),
]


@pytest.mark.parametrize(("policy", "tool", "arguments", "action"), CASES)
def test_a_call_gets_the_ruling_of_the_rules(
    policy: Policy, tool: str, arguments: dict[str, Any], action: Action
) -> None:
    assert policy.decide(tool, arguments).action == action


@pytest.mark.parametrize("key", ["to.bcc", "to．bcc", "to․bcc", "other.key"])
def test_a_key_with_a_dot_fits_only_an_exact_allow_rule(key: str) -> None:
    arguments = {"to": "a@me.org", key: "evil@x.org"}
    for rule in ("send to=*@me.org", "send to=* *", f"send to=*@me.org to.bcc=* {key}=*"):
        assert Policy(allow=[rule]).decide("send", arguments).action == "ask"
    assert Policy(allow=["send"]).decide("send", arguments).action == "allow"
    exact = exact_rule("send", arguments)
    assert Policy(allow=[exact]).decide("send", arguments) == Ruling("allow", exact)
    step = Policy(allow=["send to=*"]).explain("send", arguments)[0]
    assert key in step.why and "contains a dot" in step.why


def test_the_ruling_names_the_rule_that_decides() -> None:
    assert FILES.decide("list_x", {}) == Ruling("allow", "list_*")
    assert FILES.decide("unknown", {}) == Ruling("ask", "default")
    assert Policy(default="deny").decide("x", {}) == Ruling("deny", "default")
    assert Policy().decide("x", {}) == Ruling("ask", "")


def test_deny_beats_ask_beats_allow_beats_the_default() -> None:
    policy = Policy(deny=["a"], ask=["a", "b"], allow=["a", "b", "c"], default="deny")
    assert [policy.decide(tool, {}).action for tool in "abcd"] == ["deny", "ask", "allow", "deny"]


def test_a_star_means_tools_and_not_the_other_methods() -> None:
    policy = Policy(allow=["*"], deny=["resources/read uri=file:///etc/**"])
    assert policy.decide("anything", {}).action == "allow"
    assert policy.decide("prompts/get", {"name": "review"}).action == "ask"
    assert policy.decide("resources/read", {"uri": "file:///etc/passwd"}).action == "deny"
    readable = Policy(allow=["resources/read uri=file:///srv/docs/**", "resources/read uri=memo://*"])
    assert readable.decide("resources/read", {"uri": "file:///srv/docs/a"}).action == "allow"
    assert readable.decide("resources/read", {"uri": "memo://insights"}).action == "allow"
    assert readable.decide("resources/read", {"uri": "file:///srv/docs/../x"}).action == "ask"


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("", "is empty"),
        ("   ", "is empty"),
        ("path=/srv/docs/** *", "write the tool's name first"),
        ("read path", "is not a condition"),
        ("read * path=/a", "* must be the last word"),
        ("read path='/a", "no closing quotation"),
        ("read path=/a\\", "no escaped character"),
        ("read path=/srv/../etc", "empty names, . or .."),
        ("read path=/srv//etc", "empty names, . or .."),
        ("read path=/srv/**.md", "** must be a whole name"),
        ("read path=/srv\\\\docs", "backslash"),
        ("read size<many", "is not a number"),
        ("read size<1e999", "is not a number"),
        ("read size<", "is not a number"),
        ("read size=1e999", "is not a number"),
        ("read url=https://user:secret@host/", "without a user name"),
        ("read url=https://bücher.de/", "in ASCII"),
        ("read url=https:///x", "empty host"),
        ("read url=http://127.1/", "not a plain host name"),
        ("read url=see https://x", "is not a condition"),
        ("read path=/a\u200b", "invisible"),
        ("read\npath=/a", "one line"),
        ('read {"a": 1, "a": 2}', "a key occurs twice"),
        ('read {"a": NaN}', "NaN is not JSON"),
        ('read {"a": 1', "not a JSON object"),
        ("read {} *", "not a JSON object"),
    ],
)
def test_a_rule_that_cannot_be_read_is_one_clear_line(rule: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Policy(allow=[rule])
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert str(caught.value).startswith("allow: the rule ")


@dataclass
class Server:
    name: str = "files"
    deny: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    page_allow: tuple[str, ...] = ()
    default: Action = "ask"


def test_the_settings_of_a_server_become_its_rules() -> None:
    server = Server(deny=("a",), ask=("b",), allow=("c",), page_allow=("b", "d"), default="deny")
    policy = Policy.of(server)
    assert [policy.decide(tool, {}).action for tool in "abcde"] == ["deny", "ask", "allow", "allow", "deny"]
    with pytest.raises(ConfigError, match=r"^\[mcp\.files\] ask: the rule 'x y': y is not a condition"):
        Policy.of(Server(ask=("x y",)))


def test_an_explanation_has_every_rule_in_order_with_its_reason() -> None:
    steps = FILES.explain("read_text_file", {"path": "/etc/passwd", "head": 1})
    assert [step.rule for step in steps] == [rule.written for _, rule in FILES.rules]
    why = {step.rule: step.why for step in steps}
    assert why["delete_*"] == "it is about other tools"
    assert why["* force=true"] == "force=true does not hold"
    assert why["read_text_file path=/srv/docs/** *"] == "path=/srv/docs/** does not surely hold"
    (step,) = Policy(allow=["grep path=/a"]).explain("grep", {"path": "/a", "more": 1})
    assert step.why == "it does not name the argument more: add more=* or end the rule with *"


def test_a_tool_of_which_no_call_can_run_is_known_beforehand() -> None:
    policy = Policy(deny=["a", "b x=1"], ask=["a", "c"], allow=["d y=1"], default="deny")
    assert [tool for tool in "abcde" if policy.never(tool)] == ["a", "b", "e"]
    assert [tool for tool in "abc" if Policy(deny=["a", "b x=1"]).never(tool)] == ["a"]


# --- properties ---

NAMES = st.text("ab._-", min_size=1, max_size=3)
TEXTS = st.one_of(
    st.text(max_size=8),
    st.text("/.ab*?~\\\n%2e", max_size=12),
    st.sampled_from(["true", "null", "5", "*", "**", "https://a.b/c", "/srv/docs/a", ""]),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(NAMES, VALUES, max_size=3)
PATTERNS = st.sampled_from(
    ["*", "true", "null", "5", "a*", "*a*b*", "/srv/**", "/**/a/*", "https://a.b/**", "x?", "", "a/b*"]
)
CONDITIONS = st.builds(
    lambda name, op, want: f"{name}{op}'{want}'", NAMES, st.sampled_from(["=", "!="]), PATTERNS
)
RULES = st.builds(
    lambda conditions, rest: " ".join(["t", *conditions, *rest]),
    st.lists(CONDITIONS, max_size=3),
    st.sampled_from([[], ["*"]]),
)


@given(RULES, ARGUMENTS)
@settings(max_examples=500)
def test_what_an_allow_rule_fits_the_same_rule_also_denies(rule: str, arguments: dict[str, Any]) -> None:
    if Policy(allow=[rule]).decide("t", arguments).action == "allow":
        assert Policy(deny=[rule], allow=["*"]).decide("t", arguments).action == "deny"


@given(RULES, RULES, ARGUMENTS)
@settings(max_examples=300)
def test_another_rule_never_weakens_a_deny(deny: str, allow: str, arguments: dict[str, Any]) -> None:
    alone = Policy(deny=[deny], default="allow").decide("t", arguments).action
    both = Policy(deny=[deny], ask=[allow], allow=[allow, "*"], default="allow").decide("t", arguments).action
    assert (alone == "deny") == (both == "deny")


@given(ARGUMENTS, ARGUMENTS)
@settings(max_examples=500)
def test_the_exact_rule_of_a_call_allows_that_call_and_no_other(
    arguments: dict[str, Any], other: dict[str, Any]
) -> None:
    rule = exact_rule("t", arguments)
    if not rule:  # NaN, infinity and half characters are no JSON
        assert any(mark in repr(arguments) for mark in ("nan", "inf", "\\ud"))
        return
    policy = Policy(allow=[rule])
    assert policy.decide("t", arguments) == Ruling("allow", rule)
    assert policy.decide("u", arguments).action == "ask"
    assert policy.decide("t", {**arguments, "new": None}).action == "ask"
    if not same(arguments, other):
        assert policy.decide("t", other).action == "ask"


def same(one: Any, two: Any) -> bool:
    if isinstance(one, bool) or isinstance(two, bool):
        return one is two
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(same(value, two[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(map(same, one, two))
    return bool(one == two)


@given(st.text(max_size=40))
@settings(max_examples=500)
def test_any_text_is_a_rule_or_one_clear_error(written: str) -> None:
    try:
        Rule.parse(written)
    except ConfigError as error:
        assert "\n" not in str(error)


def test_an_exact_rule_is_readable_and_hides_nothing() -> None:
    arguments = {"path": "/srv/Notizen/é b.md", "text": "a\n\u200b'\"*"}
    rule = exact_rule("read", arguments)
    assert rule == 'read {"path": "/srv/Notizen/é b.md", "text": "a\\n\\u200b\'\\"*"}'
    assert Policy(allow=[rule]).decide("read", arguments).action == "allow"
    assert exact_rule("list", {}) == "list {}"
    assert Policy(allow=["list {}"]).decide("list", {"path": "/"}).action == "ask"


@pytest.mark.parametrize("tool", ["", "a b", "a*", "a?", "a=b", "prompts/get", "a\u200b"])
def test_a_tool_whose_name_no_rule_can_write_has_no_exact_rule(tool: str) -> None:
    assert exact_rule(tool, {}) == ""


# --- time ---

HOSTILE = [
    ("text=" + "*a" * 30 + "*b", {"text": "a" * 99_000}),
    ("text=" + "*?" * 20 + "b", {"text": "a" * 99_000}),
    ("text=/" + "**/a/" * 20 + "b", {"text": "/a" * 40_000}),
    ("text=/" + "**/*a*a*a*/" * 10 + "b", {"text": "/aaaa" * 19_000}),
    ("text=/" + "*a" * 30 + "/**/b", {"text": "/" + "a" * 99_000}),
    ("text=https://a.b/" + "**/a/" * 20 + "b", {"text": "https://a.b" + "/a" * 40_000}),
    ("text=https://a.b/?" + "*a" * 20 + "b", {"text": "https://a.b/?" + "a" * 99_000}),
    ("text=https://" + "*a." * 20 + "b/", {"text": "https://" + "a." * 40_000 + "c/"}),
    ("text=/**", {"text": "/%25" + "25" * 40_000}),
    ("text=*x", {"text": "ﷺ" * 90_000}),
    ("a.b.c=1", {"a": [{"b": [{"c": 0}] * 60}] * 100}),
    ("text=*x", {"text": ["y"] * 19_000}),
]


@pytest.mark.parametrize(("condition", "arguments"), HOSTILE)
def test_hostile_patterns_and_arguments_take_no_time(condition: str, arguments: dict[str, Any]) -> None:
    policy = Policy(deny=[f"t {condition}"], allow=[f"t {condition} *"])
    began = time.process_time()
    policy.decide("t", arguments)
    assert time.process_time() - began < 1


def test_the_actions_are_tried_from_the_strictest() -> None:
    assert ACTIONS == ("deny", "ask", "allow")
