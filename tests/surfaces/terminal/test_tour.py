"""`toolwire tour --terminal` on a real terminal: the keys, and what stays of the tour."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

QUESTION, PICKER, REASON = "ctrl-c stop", "space toggles", "Reason (optional"
Start = Callable[..., Any]


@pytest.fixture
def tour(place: Any, terminal: Start) -> Any:
    (place.folder / "tmp").mkdir()
    place.environment |= {"TMPDIR": str(place.folder / "tmp"), "XDG_CACHE_HOME": str(place.folder / "cache")}
    (place.folder / "toolwire.toml").write_text("this is not TOML")  # the person's settings are not read
    return terminal("tour", "--terminal", lines=200)


def at(one: Any, step: int) -> None:
    """Waits for the question of a step."""
    one.see(f"Step {step} of 5")


def left(place: Any) -> list[str]:
    return [name for name in os.listdir(place.folder / "tmp") if name.startswith("toolwire-tour-")]


def test_the_tour_by_keys(tour: Any, place: Any) -> None:
    tour.see("scripted-tour (scripted, for this tour)", "your own notes are not touched")
    at(tour, 1)
    tour.answer(QUESTION, "a")
    at(tour, 2)
    tour.answer(QUESTION, "a")
    tour.answer(PICKER, "a")
    tour.see("4 of 4 picked")
    tour.answer(PICKER, "\r")
    at(tour, 3)
    tour.answer(QUESTION, "a")
    tour.see("0 of 3 picked")
    tour.answer(PICKER, " ")
    tour.see("1 of 3 picked")
    tour.answer(PICKER, "\r")
    at(tour, 4)
    shown = tour.see("Choose a hotel: Casa do Rio")
    assert "You shared 4 of 4 results" in shown
    tour.answer(QUESTION, "a")
    at(tour, 5)
    tour.answer(QUESTION, "d")
    tour.see(REASON)
    tour.press("It is my diary.\r")
    shown = tour.see("That was the tour.")
    assert "The note now has exactly the change that you saw." in shown
    assert "everything that I received" in shown and '"reason": "It is my diary."' in shown
    assert tour.end() == 0
    assert (
        left(place) == [] and not (place.folder / "state").exists() and not (place.folder / "cache").exists()
    )


def test_ctrl_c_stops_the_turn_and_enter_goes_on(tour: Any, place: Any) -> None:
    at(tour, 1)
    tour.answer(QUESTION, "\x03")
    tour.see("stopped", "Enter continues the tour, Ctrl-D ends it.")
    tour.press("\r")
    tour.until(lambda shown: shown.count("Step 1 of 5") == 2, "the question again")
    tour.answer(QUESTION, "d")
    tour.see(REASON)
    tour.press("\r")
    at(tour, 3)
    tour.answer(QUESTION, "\x03")
    tour.until(lambda shown: shown.count("Ctrl-D ends it") == 2, "the choice again")
    tour.press("\x04")
    assert tour.end() == 0 and left(place) == []


def test_without_a_terminal_it_says_so(place: Any) -> None:
    done = place.run("tour", "--terminal", status=2)
    assert done.stderr == (
        "toolwire: tour --terminal: this is not a terminal; toolwire tour opens the web page instead\n"
    )
