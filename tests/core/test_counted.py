"""Numbers with their nouns, in messages."""

from __future__ import annotations

import pytest

from toolwire.core.display import counted


@pytest.mark.parametrize(
    ("number", "nouns", "shown"),
    [
        (0, ("note",), "0 notes"),
        (1, ("note",), "1 note"),
        (2, ("note",), "2 notes"),
        (1, ("note matches", "notes match"), "1 note matches"),
        (1234, ("note matches", "notes match"), "1,234 notes match"),
    ],
)
def test_a_number_has_the_form_of_its_noun(number: int, nouns: tuple[str, ...], shown: str) -> None:
    assert counted(number, *nouns) == shown
