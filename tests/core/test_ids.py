"""Ids of Toolwire are random, and can be told from texts that a client chose."""

from __future__ import annotations

import pytest

from toolwire.core.ids import is_own, random_id


@pytest.mark.parametrize("prefix", ["req_", "turn_", "chatcmpl-", "call_"])
def test_an_id_of_our_own_is_recognized_and_never_repeats(prefix: str) -> None:
    made = {random_id(prefix) for _ in range(500)}
    assert len(made) == 500 and all(map(is_own, made))


HEX = "0123456789abcdef01234567"


@pytest.mark.parametrize(
    "text",
    [
        *("", "req_", "req_1", "mine-1", HEX, f"req_{HEX[1:]}", f"req_{HEX}0", f"a b_{HEX}", f"req_{HEX}\n"),
        *("sk-bench-0123456789", f"REQ_{HEX}", f"req_{HEX.upper()}", "req_" + 24 * "g"),
    ],
)
def test_any_other_text_may_hold_a_secret(text: str) -> None:
    assert not is_own(text)
