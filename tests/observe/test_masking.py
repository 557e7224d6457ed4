"""Masking: hides private keys, assigned passwords and credentials, whole or in pieces, but no prose."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolwire.observe.masking import Mask

MASK = Mask()
BODY = (
    "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj\n"
    "MzEfYyjiWA4R4/M2bS1GB4t7NXp98C3SC6dVMvDuictGeurT8jNbvJZHtCSuYEvu\nq83v=="
)
KINDS = [
    "PRIVATE KEY",
    "RSA PRIVATE KEY",
    "EC PRIVATE KEY",
    "DSA PRIVATE KEY",
    "ENCRYPTED PRIVATE KEY",
    "OPENSSH PRIVATE KEY",
    "PGP PRIVATE KEY BLOCK",
]
PEMS = [f"-----BEGIN {kind}-----\n{BODY}\n-----END {kind}-----" for kind in KINDS]
PEMS += [
    PEMS[1].replace("-----\nMII", "-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,0123\n\nMII"),
    PEMS[0].replace("\n", "\r\n"),
]


@pytest.mark.parametrize("pem", PEMS, ids=lambda pem: pem[11:40])
@pytest.mark.parametrize(
    "wrap",
    [str, json.dumps, lambda text: json.dumps(json.dumps({"file": text}))],
    ids=["plain", "json", "json in json"],
)
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "without its end"])
def test_a_private_key_is_hidden_however_it_is_written(pem: str, wrap: object, whole: bool) -> None:
    text = pem if whole else pem[: pem.index("-----END")].rstrip()
    assert callable(wrap)
    shown = MASK.text(f"before {wrap(text)} after")
    assert "MIIE" not in shown and "q83v" not in shown and "ictGeurT8" not in shown
    assert shown.startswith("before ") and shown.endswith(" after") and "***" in shown
    assert MASK.text(shown) == shown


@given(st.sampled_from(PEMS), st.lists(st.integers(1, 40), min_size=1, max_size=60))
def test_a_private_key_that_comes_in_pieces_is_hidden(pem: str, sizes: list[int]) -> None:
    text, pieces, at, number = f"Here it is: {pem} Keep it.", [], 0, 0
    while at < len(text):
        pieces.append(text[at : at + sizes[number % len(sizes)]])
        at, number = at + len(pieces[-1]), number + 1
    shown, touched = MASK.pieces(pieces)
    assert "".join(shown) == MASK.text(text) and touched
    assert (
        "MIIE" not in "".join(shown)
        and "Here it is: " in "".join(shown)
        and "".join(shown).endswith(" Keep it.")
    )


def test_several_keys_and_a_public_one() -> None:
    public = f"-----BEGIN PUBLIC KEY-----\n{BODY}\n-----END PUBLIC KEY-----"
    shown = MASK.text(f"{PEMS[0]} and {PEMS[2]} and {public}")
    assert shown.count("***") == 2 and shown.endswith(public) and " and " in shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("password=hunter2 and more", "password=*** and more"),
        ("passwd: hunter2", "passwd: ***"),
        ("pwd=abc;Database=x", "pwd=***;Database=x"),
        ("Password: P@ssw0rd", "Password: ***"),
        ("secret=abc", "secret=***"),
        ("PASSPHRASE = 'correct horse battery'", "PASSPHRASE = '***'"),
        ("export DB_PASSWORD=s3cr3t", "export DB_PASSWORD=***"),
        ("db.password := hunter2!", "db.password := ***"),
        ("connect(password='a b c', user='u')", "connect(password='***', user='u')"),
        ("{'password': 'x', 'user': 'u'}", "{'password': '***', 'user': 'u'}"),
        ('password: "x y"\nuser: me', 'password: "***"\nuser: me'),
        ('{"text": "password=\\"hunter2\\" ok"}', '{"text": "password=\\"***\\" ok"}'),
        ("curl 'https://h/x?access_token=abc&page=2'", "curl 'https://h/x?access_token=***&page=2'"),
        ("https://a.example/x?sig=abcdefghij%2B&x=1", "https://a.example/x?sig=***&x=1"),
        ("mysql --password hunter2 -x", "mysql --password *** -x"),
        ("tool --api-key=abc123 run", "tool --api-key=*** run"),
        (
            "DefaultEndpointsProtocol=https;AccountKey=abc123==;Suffix=x",
            "DefaultEndpointsProtocol=https;AccountKey=***;Suffix=x",
        ),
        ("aws_secret_access_key = wJalrXUtnFEMI7K7MDENGbPxRfiCYEXAMPLEKEY", "aws_secret_access_key = ***"),
        ("client_secret: 0123456789abcdef0123", "client_secret: ***"),
        ("postgres://me:hunter2@h/db and redis://:pw@h", "postgres://me:***@h/db and redis://:***@h"),
        ("https://0123456789abcdef0123456789@github.com/x", "https://***@github.com/x"),
        ("sk_live_" + "0123456789abcdefghij", "***"),
        ("npm_" + "a1" * 18, "***"),
        ("123456789:AA" + "b" * 33, "***"),
    ],
)
def test_assigned_secrets_and_credentials_are_hidden(text: str, shown: str) -> None:
    assert MASK.text(text) == shown and MASK.text(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "Password: please enter your password.",
        "The secret = patience, and the token: a coin.",
        "Forgot your password? Your password is required: reset it.",
        "password: required, token: optional, secret: none",
        "def login(user: str, password: str, token: str | None = None) -> bool:",
        "if password == other or secret != token:",
        "max_tokens=1024, tokens: 1,024, num_tokens = 7",
        "pwd: /home/me",
        "password: $DB_PASSWORD, secret: ${{ secrets.X }}, token=$TOKEN, password=<yours>",
        "A key begins with -----BEGIN PRIVATE KEY----- and then lines of base64.",
        "All tests pass: 12 of 13. A bypass=1 flag.",
        '{"password": {"type": "string", "minLength": 8}, "token": null}',
        "see https://example.com/a@b and mail me@example.com",
        "at 12:30 the ratio is 16:9",
    ],
)
def test_prose_and_code_without_secrets_stay_as_they_are(text: str) -> None:
    assert MASK.text(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "password=" * 30_000,
        'password: "' * 30_000,
        "password:" + " " * 200_000,
        "password: " + "a" * 300_000,
        "token:" * 40_000,
        "-----BEGIN PRIVATE KEY-----" * 10_000,
        "-----BEGIN PRIVATE KEY-----" + "\\n" * 150_000,
        "-----BEGIN PRIVATE KEY-----\n" + "Ab: c " * 50_000,
        ("-----BEGIN PRIVATE KEY-----" + "x" * 30 + "-----END ") * 5_000,
        "--password " * 30_000,
        "://" + "a" * 300_000,
    ],
    ids=lambda text: text[:30],
)
def test_masking_takes_time_in_proportion_to_the_text(text: str, growth: Callable[..., float]) -> None:
    assert growth(lambda size: MASK.text(text[:size]), len(text) // 16, len(text) // 4) < 8
