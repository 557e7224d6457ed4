"""Questions that one key answers, the picker of files and results, and the line editor.

The module needs the extra `chat`. For its first half second, a question is dimmed and ignores keys, because
keys that were typed before the person could read the question are not an answer. Ctrl-C always works, and
raises `Stopped`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.application import Application
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import Layout, Window
from prompt_toolkit.layout.controls import FormattedTextControl
from prompt_toolkit.validation import ValidationError, Validator

from toolwire.core.display import one_line
from toolwire.surfaces import cards
from toolwire.surfaces.terminal.screen import drop_typed_ahead
from toolwire.tools.contract import Preview, Stage, approve_label

SETTLE_S = 0.5
PAGE = 12
ESCAPE = "escape"
_FAR = 1_000_000
MOVES = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -PAGE, "pagedown": PAGE, "home": -_FAR, "end": _FAR}
"""How far each key moves the cursor of the picker."""


class Stopped(Exception):
    """Raised when the person presses Ctrl-C."""


class _Keys:
    """Shows a text and waits for keys. Calls `take(key)` for each key that is pressed while it is `ready`."""

    def __init__(self, text: Callable[[], StyleAndTextTuples], take: Callable[[str], None]) -> None:
        self._take = take
        self._shown = False
        self.ready = False
        bindings = KeyBindings()
        bindings.add("c-c", eager=True)(lambda event: event.app.exit(exception=Stopped()))
        bindings.add(Keys.Any)(self._pressed)
        for name in ("up", "down", "pageup", "pagedown", "home", "end", "enter", ESCAPE, "c-d"):
            bindings.add(name)(self._pressed)
        control = FormattedTextControl(text, focusable=True, show_cursor=False)
        layout = Layout(Window(control, wrap_lines=True, dont_extend_height=True))
        self.app: Application[Any] = Application(
            layout, key_bindings=bindings, erase_when_done=True, after_render=self._rendered
        )
        self.app.timeoutlen = self.app.ttimeoutlen = 0.1

    async def run(self) -> Any:
        drop_typed_ahead()
        return await self.app.run_async(handle_sigint=False)

    def style(self) -> str:
        return "bold" if self.ready else "ansibrightblack"

    def _rendered(self, app: Application[Any]) -> None:
        if not self._shown:
            self._shown = True
            asyncio.get_running_loop().call_later(SETTLE_S, self._settled)

    def _settled(self) -> None:
        self.ready = True
        self.app.invalidate()

    def _pressed(self, event: KeyPressEvent) -> None:
        if self.ready:
            key = event.key_sequence[-1].key
            name = str(key.value if isinstance(key, Keys) else key)
            self._take("enter" if name in ("c-m", "c-j") else name)


async def choose(text: str, keys: Container[str]) -> str:
    """Waits for one of the keys and returns it in lower case. Ignores other keys."""

    def take(key: str) -> None:
        if key.lower() in keys:
            asked.app.exit(result=key.lower())

    asked = _Keys(lambda: [(asked.style(), text)], take)
    answer: str = await asked.run()
    return answer


class Picker:
    """A list of files or results to pick from. Nothing is picked at first.

    A file that does not exist or cannot be read cannot be picked. Enter ends the picking if something is
    picked, or if nothing can be picked.
    """

    def __init__(self, shown: Preview, stage: Stage) -> None:
        self.shown = shown
        self.stage = stage
        self.touched = shown.touched
        self.picked: set[str] = set()
        self.cursor = 0

    def press(self, key: str) -> bool:
        """Handles a key. Returns True if the key ends the picking."""
        if key in MOVES:
            self.cursor = max(0, min(max(0, self.cursor + MOVES[key]), len(self.touched) - 1))
        elif key == " " and self.touched:
            one = self.touched[self.cursor]
            if not one.missing:
                self.picked ^= {one.key}
        elif key == "a":
            self.picked = {one.key for one in self.touched if not one.missing}
        elif key == "n":
            self.picked = set()
        return key == "enter" and (bool(self.picked) or not self.shown.pickable)

    def chosen(self) -> tuple[str, ...]:
        return tuple(one.key for one in self.touched if one.key in self.picked)

    def text(self, style: str = "bold") -> StyleAndTextTuples:
        top = max(0, min(self.cursor - PAGE // 2, len(self.touched) - PAGE))
        out: StyleAndTextTuples = []
        for number, one in enumerate(self.touched[top : top + PAGE], top):
            picked = one.key in self.picked
            mark = "[-]" if one.missing else "[x]" if picked else "[ ]"
            row = ("reverse " if number == self.cursor else "") + ("ansigreen" if picked else "")
            out.append((row, f"{mark} {cards.touched(one)}\n"))
        more = f" (lines {top + 1}-{min(top + PAGE, len(self.touched))})" if len(self.touched) > PAGE else ""
        count = f"{len(self.picked)} of {len(self.touched)} picked{more}"
        label = approve_label(self.shown, self.stage, len(self.picked))
        enter = f"enter: {label}" if self.picked or not self.shown.pickable else "pick something, or esc back"
        keys = f"space toggles · a all · n none · {enter}" + (" · esc back" if self.picked else "")
        return [*out, (style, f"{count} · {keys}")]

    async def run(self) -> tuple[str, ...] | None:
        """Returns the keys of the picked files or results, in their order; None if the person goes back."""

        def take(key: str) -> None:
            if key in (ESCAPE, "q"):
                asked.app.exit(result=None)
            elif self.press(key):
                asked.app.exit(result=self.chosen())
            else:
                asked.app.invalidate()

        asked = _Keys(lambda: self.text(asked.style()), take)
        chosen: tuple[str, ...] | None = await asked.run()
        return chosen


class _Checked(Validator):
    def __init__(self, check: Callable[[str], object]) -> None:
        self._check = check

    def validate(self, document: Any) -> None:
        try:
            self._check(document.text)
        except Exception as error:
            raise ValidationError(message=one_line(str(error))) from None


async def line(
    message: str, default: str = "", check: Callable[[str], object] | None = None, *, hidden: bool = False
) -> str | None:
    """Reads a line that the person writes. Returns None if the person presses Escape.

    `check` raises an exception for an invalid text. `hidden`: show stars instead of the text.
    """
    bindings = KeyBindings()
    bindings.add(ESCAPE, eager=True)(lambda event: event.app.exit(result=None))
    bindings.add("c-c", eager=True)(lambda event: event.app.exit(exception=Stopped()))
    session: PromptSession[str | None] = PromptSession(
        message,
        key_bindings=bindings,
        validator=_Checked(check) if check else None,
        validate_while_typing=False,
        erase_when_done=True,
        is_password=hidden,
    )
    return await session.prompt_async(default=default, handle_sigint=False)
