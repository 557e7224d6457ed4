"""The tables [notices.NAME]: what fits together, where they may come from, and what is never shown."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from toolwire.observe.masking import Mask
from toolwire.settings.load import load
from toolwire.settings.types import ConfigError, NoticeSettings, Settings, print_config

SECRET = "a-webhook-secret-of-some-length"
PHONE = """
[notices.phone]
kind = "ntfy"
url = "https://ntfy.example.com/"
topic = "env:TOPIC"
token = "file:token"
"""
FULL = f"""{PHONE}
level = "buttons"
detail = "full"
approve = true
pages = "https://toolwire.example.com/"
after_s = 2.5
terminal = true
"""
ENVIRONMENT = {"TOPIC": "toolwire-x7f3"}


def read(folder: Path, text: str, environ: Mapping[str, str] = ENVIRONMENT) -> Settings:
    (folder / "toolwire.toml").write_text(text)
    (folder / "token").write_text("tk_from_a_file\n")
    return load(str(folder / "toolwire.toml"), environ, {})


def one(folder: Path, text: str, environ: Mapping[str, str] = ENVIRONMENT) -> NoticeSettings:
    (notice,) = read(folder, text, environ).notices
    return notice


def test_there_are_no_notices_by_default(tmp_path: Path) -> None:
    assert read(tmp_path, "").notices == ()


def test_a_table_is_a_notice_with_its_secrets_resolved(tmp_path: Path) -> None:
    notice = one(tmp_path, FULL)
    assert (notice.name, notice.kind, notice.problem) == ("phone", "ntfy", "")
    assert (notice.url, notice.pages) == ("https://ntfy.example.com", "https://toolwire.example.com")
    assert (notice.topic, notice.token) == ("toolwire-x7f3", "tk_from_a_file")
    assert (notice.level, notice.detail, notice.approve) == ("buttons", "full", True)
    assert (notice.after_s, notice.terminal) == (2.5, True)


def test_the_defaults_send_little_and_late(tmp_path: Path) -> None:
    notice = one(tmp_path, PHONE)
    assert (notice.level, notice.detail, notice.approve, notice.terminal) == ("notice", "name", False, False)
    assert notice.after_s == 10


HOOK = '[notices.h]\nurl = "https://h.example.com/x?y=1"\nsecret = "' + SECRET + '"\n'
WRONG = [
    ("[notices]\nh = 1", "expected a table [notices.h] with kind and url"),
    ('[notices.h]\nkind = "pager"', "kind: expected one of webhook, ntfy"),
    ("[notices.h]", "expected a table [notices.h] with kind and url"),
    ('[notices.h]\nurl = "https://h.example.com"', "a webhook needs a secret of at least 16 characters"),
    (HOOK + "colour = 1", "unknown key colour"),
    (HOOK + 'token = "x"', 'token: a notice with kind = "webhook" cannot have this key'),
    (HOOK + "after_s = -1", "after_s: expected a number from 0 to 3600"),
    (HOOK + 'level = "link"', 'pages: level = "link" needs the address of the web pages'),
    (HOOK + 'pages = "https://x.example.com/sub"', "pages: expected an address without a path"),
    (HOOK + 'pages = "toolwire.example.com"', "pages: expected an address such as"),
    (
        HOOK + 'approve = true\nlevel = "buttons"\npages = "https://x"',
        'approve: needs level = "buttons" and detail',
    ),
    (HOOK.replace("https://h", "https://me:pw@h"), "url: an address with a password is not accepted"),
    (HOOK.replace("https:", "ftp:"), "url: expected an address such as"),
    (HOOK.replace("x?y=1", "x#y"), "url: expected an address without a fragment"),
    (HOOK.replace("x?y=1", "x\\ny"), "url: expected an address such as"),
    (HOOK.replace("h.example.com", "[::1"), "url: expected an address such as"),
    (PHONE + 'secret = "' + SECRET + '"', 'secret: a notice with kind = "ntfy" cannot have this key'),
    (PHONE.replace("env:TOPIC", "a topic"), "topic: expected at most 64 letters"),
    (PHONE.replace("env:TOPIC", "env:NOPE"), "the environment variable NOPE is not set"),
    (PHONE.replace("file:token", "file:gone"), "cannot be read"),
    (PHONE.replace(".com/", ".com/topic"), "url: expected an address without a path"),
    (FULL.replace("ntfy.example.com", "ntfy.sh"), "ntfy.sh can read every message"),
    (FULL.replace('token = "file:token"', ""), "needs an access token that protects the topic"),
]


@pytest.mark.parametrize(("text", "said"), WRONG)
def test_a_mistake_makes_only_this_notice_unavailable(tmp_path: Path, text: str, said: str) -> None:
    settings = read(tmp_path, text + '\n[notices.other]\nurl = "https://o"\nsecret = "' + SECRET + '"')
    bad, other = settings.notices
    assert said in bad.problem and "\n" not in bad.problem and other.problem == ""
    assert bad.where.endswith("toolwire.toml")


def test_a_public_server_may_get_notices_without_links(tmp_path: Path) -> None:
    assert one(tmp_path, PHONE.replace("ntfy.example.com", "ntfy.sh")).problem == ""


def test_a_name_that_cannot_be_written_into_the_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="this name of a notice cannot be used"):
        read(tmp_path, '[notices."a b"]\nkind = "ntfy"')


def test_the_environment_sets_single_keys_and_whole_tables(tmp_path: Path) -> None:
    environ = {
        **ENVIRONMENT,
        "TOOLWIRE_NOTICES__PHONE__AFTER_S": "1",
        "TOOLWIRE_NOTICES__PHONE__TERMINAL": "yes",
    }
    notice = one(tmp_path, PHONE, environ)
    assert (notice.after_s, notice.terminal, notice.problem) == (1, True, "")
    table = '{"h": {"url": "https://h.example.com", "secret": "' + SECRET + '"}}'
    assert one(tmp_path, PHONE, {"TOOLWIRE_NOTICES": table}).name == "h"


def test_a_settings_file_that_lies_in_the_working_folder_sends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read(tmp_path, FULL)
    monkeypatch.chdir(tmp_path)
    (notice,) = load(None, ENVIRONMENT, {}).notices
    assert "is in the working folder, and may not be yours" in notice.problem
    for path, environ in (("toolwire.toml", {}), (None, {"TOOLWIRE_CONFIG": "toolwire.toml"})):
        (named,) = load(path, {**ENVIRONMENT, **environ}, {}).notices
        assert named.problem == ""


def test_no_secret_is_shown(tmp_path: Path) -> None:
    hook = '[notices.h]\nurl = "env:HOOK"\nsecret = "' + SECRET + '"\n'
    environ = {**ENVIRONMENT, "HOOK": "https://h.example.com/services/T0/B0"}
    settings = read(tmp_path, FULL + hook, environ)
    printed = print_config(settings)
    hidden = ("toolwire-x7f3", "tk_from_a_file", SECRET, "services/T0/B0")
    assert not [value for value in hidden if value in printed]
    assert 'pages = "https://toolwire.example.com"' in printed
    mask = Mask.of(settings)
    masked = (*hidden[:3], environ["HOOK"])
    assert not [value for value in masked if value in mask.text(f"it was {value} there")]
    assert not [value for value in hidden if value in repr(settings.notices[0].problem)]
