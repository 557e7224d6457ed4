"""The tour: a sample vault (a folder of notes), and a scripted model that shows how approvals work.

The script has no memory. It finds its current step in the history of the turn. After each call, it describes
the result that it received, which depends on the person's decision.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from toolwire.backends.scripted.backend import ScriptedBackend
from toolwire.backends.scripted.demo import text_of
from toolwire.backends.scripted.demo_vault import DENIED, unmarked
from toolwire.backends.scripted.script import Step
from toolwire.core.turn import Call, Message, Result, Turn

MODEL = "scripted-tour"
"""The id of the tour's scripted model. People see this id as the model's name."""
LABEL = "scripted, for this tour"
OPENING = "Show me how approvals work."
"""The person's first message, which the tour sends for the person."""

PLAN, HOTELS, DIARY = "Travel/Lisbon plan.md", "Travel/Lisbon hotels.md", "Journal/Diary.md"
_OPEN_TASK = "- [ ] Choose a hotel"
NOTES = {
    "Welcome.md": "# Welcome\n\nThis is the sample vault of the Toolwire tour. Nothing in it is yours.\n",
    PLAN: f"""---
tags: [travel, spring]
---
# Lisbon plan

Four nights in May, for two.

- [x] Ask for the days off
{_OPEN_TASK}
- [ ] Book the train to Sintra

The offers are in [[Lisbon hotels]].
""",
    HOTELS: """---
tags: [travel]
---
# Lisbon hotels

Prices for one night in May.

- Casa do Rio: 84, near the river
- Hotel Miradouro: 119, with a view
""",
    DIARY: """# Diary

Lisbon is a birthday surprise for Ada. She must not read about it before May.

I have saved for it since last summer.
""",
    "Kitchen/Custard tarts.md": "# Custard tarts\n\nAs in Lisbon: 250 degrees, twelve minutes. #recipe\n",
    "Kitchen/Bread.md": "# Bread\n\n70 percent water, a night in the cold. #recipe\n\n- [ ] Buy rye flour\n",
}

HINTS = {
    ("vault_search", "run"): "Step 1 of 5, search: nothing has been searched yet. Allow the search. You can "
    "also change the query first.",
    ("vault_search", "share"): "Step 2 of 5, share: the search is done, but the script has not seen the "
    "results. Share the plan and the hotels, and keep the diary to yourself.",
    ("file_read", "run"): "Step 3 of 5, read: the script wants the whole text of these notes. Choose which "
    "of them it may read.",
    ("note_edit", "run"): "Step 4 of 5, edit: this is exactly what would change in the note. Allow it, or "
    "change the new text first.",
    ("note_write", "run"): "Step 5 of 5, deny: this call would delete the text of the diary. Deny it, and "
    "see what the script receives.",
}
"""The hint for each question of the tour, by tool and stage. Each hint says what happens, and what to try."""

_STEPS = ("vault_search", "file_read", "note_edit", "note_write")
EXPIRED = "Nobody decided about this tool call in time; it did not run"
INTERRUPTED = "interrupted"
_OFFER = re.compile(r"^- (.+?): (\d+)", re.MULTILINE)


def tour_model() -> ScriptedBackend:
    return ScriptedBackend(MODEL, answer=tour)


@dataclass(frozen=True, slots=True)
class _Did:
    """A call and its result, as the script received it."""

    call: Call
    result: dict[str, Any]

    @property
    def error(self) -> str:
        return str(self.result.get("error") or "")

    @property
    def open(self) -> bool:
        """Whether there was no decision: the question expired, or the turn was stopped."""
        return self.error in (EXPIRED, INTERRUPTED)

    @property
    def received(self) -> str:
        return f"```json\n{json.dumps(self.result, ensure_ascii=False, indent=1)}\n```"


def tour(turn: Turn) -> Iterator[Step]:
    """Yields the next steps of the tour: a comment on the last result, and a call."""
    yield Step("chunk", number=12)
    done = _done(turn)
    last = done[-1] if done else None
    at = -1 if last is None else _STEPS.index(last.call.name)
    asked_again = isinstance(turn.items[-1], Message) if turn.items else True
    if last is not None and last.open:
        if not asked_again:
            yield _say(
                "Nobody decided about this call in time, so it did not run: silence is never consent. "
                "Send any message, and I ask again."
            )
            return
        at -= 1
    elif last is not None:
        if at == len(_STEPS) - 1 and asked_again:
            yield _say(
                "The tour is over, and I am only a script. Choose **New chat** to talk to another model, or "
                "take the tour again with a new sample vault."
            )
            return
        yield _say(_COMMENTS[last.call.name](last))
    if at + 1 == len(_STEPS):
        yield _say(END)
        return
    tool = _STEPS[at + 1]
    if turn.tool_choice.mode == "none" or tool not in {one.name for one in turn.tools}:
        yield _say("I cannot call a tool of the sample vault now. Send any message to try again.")
        return
    words, arguments = _CALLS[tool](done)
    yield _say(words)
    yield Step("call", json.dumps(arguments, ensure_ascii=False), tool)


def _say(words: str) -> Step:
    return Step("raw", f"{words}\n\n")


def _done(turn: Turn) -> list[_Did]:
    results = {item.call_id: item for item in turn.items if isinstance(item, Result)}
    calls = (item for item in turn.items if isinstance(item, Call) and item.name in _STEPS)
    return [_Did(call, _result(results.get(call.call_id))) for call in calls]


def _result(item: Result | None) -> dict[str, Any]:
    """Returns the JSON object in a result, or an error object if the call was interrupted."""
    return unmarked(text_of(item)) or {"error": INTERRUPTED}


# --- the calls: what the script says, and the arguments


def _search(done: list[_Did]) -> tuple[str, dict[str, Any]]:
    words = (
        "I am a **script**, not an AI. I play the part of a model, so that you can try approvals without an "
        "account. My calls are real, but on a sample vault: your own notes are not touched.\n\n"
        "**Step 1, search.** I ask to search the notes for *Lisbon*. Nothing runs before you allow it."
    )
    return words, {"query": "Lisbon", "limit": 10}


def _read(done: list[_Did]) -> tuple[str, dict[str, Any]]:
    paths = [path for did in done if did.call.name == "vault_search" for path in _found(did)][:3]
    known = ""
    if not paths:
        paths = [PLAN, HOTELS]
        known = " A real model would not know their names now. The script does, so that the tour goes on."
    words = f"**Step 3, read.** I ask to read {_names(paths)}. You can leave out any of them.{known}"
    return words, {"filePaths": paths}


def _edit(done: list[_Did]) -> tuple[str, dict[str, Any]]:
    change = {"oldText": _OPEN_TASK, "newText": "- [x] Choose a hotel: Casa do Rio, 84 a night"}
    arguments: dict[str, Any] = {"filePath": PLAN, "edits": [change]}
    hashes = {note["path"]: note.get("sha256") for did in done for note in _read_notes(did)}
    if hashes.get(PLAN):
        arguments["baseHash"] = hashes[PLAN]
    words = f"**Step 4, edit.** I ask to enter the hotel in {_names([PLAN])}. You see the exact change first."
    return words, arguments


def _overwrite(done: list[_Did]) -> tuple[str, dict[str, Any]]:
    words = (
        f"**Step 5, deny.** Now a call that you should deny: I ask to replace the whole text of "
        f"{_names([DIARY])}."
    )
    return words, {"filePath": DIARY, "content": "# Diary\n\nTidied up.\n"}


_CALLS: dict[str, Callable[[list[_Did]], tuple[str, dict[str, Any]]]] = {
    "vault_search": _search,
    "file_read": _read,
    "note_edit": _edit,
    "note_write": _overwrite,
}


# --- the comments on results


def _not_done(did: _Did, denied: str) -> str:
    if did.error == DENIED:
        return f"{denied} This is everything that I received:\n\n{did.received}"
    return f"The call failed, and I received the reason:\n\n{did.received}"


def _edited(did: _Did) -> str:
    """Returns a sentence about arguments that the person changed, or ""."""
    note = str(did.result.get("note") or "")
    return (
        f" You changed my call, and the result says so: *{note}*" if "changed the arguments" in note else ""
    )


def _after_search(did: _Did) -> str:
    if did.error:
        return _not_done(did, "You denied the search or its results.")
    paths, found = _found(did), int(did.result.get("found") or 0)
    if not found:
        return f"The search found nothing.{_edited(did)}"
    of = f"of {found} result{'' if found == 1 else 's'}"
    if not paths:
        return f"**Step 2, share.** You shared none {of}. I only know their number.{_edited(did)}"
    hidden = found - len(paths)
    rest = f" I know that there are {hidden} more, but not which." if hidden > 0 else ""
    shared = f"You shared {len(paths)} {of}: {_names(paths)}."
    return f"**Step 2, share.** {shared}{rest}{_edited(did)}"


def _after_read(did: _Did) -> str:
    if did.error:
        return _not_done(did, "You denied the reading.")
    notes = [note for note in _read_notes(did) if note.get("size")]
    if not notes:
        return f"I have read none of the notes.{_edited(did)}"
    paths = [str(note["path"]) for note in notes]
    offers = [(int(price), name) for note in notes for name, price in _OFFER.findall(str(note["content"]))]
    best = f" The best offer is {min(offers)[1]}, {min(offers)[0]} a night." if offers else ""
    return f"I have the text of {_names(paths)} now, and of no other note.{best}{_edited(did)}"


def _after_edit(did: _Did) -> str:
    if did.error:
        return _not_done(did, "You denied the change, so the note is as it was.")
    return f"The note now has exactly the change that you saw.{_edited(did)}"


def _after_overwrite(did: _Did) -> str:
    if did.error:
        return _not_done(did, "You denied it, and the diary is as it was.")
    return (
        "You allowed it, so the diary of the sample vault now has one line. In your own vault it would be "
        f"your diary: that is why each change shows its difference first.{_edited(did)}"
    )


_COMMENTS: dict[str, Callable[[_Did], str]] = {
    "vault_search": _after_search,
    "file_read": _after_read,
    "note_edit": _after_edit,
    "note_write": _after_overwrite,
}
END = (
    "**That was the tour.** On the web pages, Inbox lists every decision, and Wire shows every byte of a "
    "conversation. To use a real model with your own notes, run `toolwire serve` and open Settings, or run "
    "`toolwire chat --vault ~/notes`."
)


def _found(did: _Did) -> list[str]:
    """Returns the paths of the notes in the search results."""
    result = did.result.get("result")
    results = result.get("results") if isinstance(result, dict) else None
    paths = [one.get("path") for one in results or () if isinstance(one, dict)]
    return list(dict.fromkeys(path for path in paths if isinstance(path, str)))


def _read_notes(did: _Did) -> list[dict[str, Any]]:
    notes = did.result.get("result") if did.call.name == "file_read" else None
    return [note for note in notes or () if isinstance(note, dict) and "path" in note and "content" in note]


def _names(paths: list[str]) -> str:
    """Returns the paths in one phrase, such as "`a.md`, `b.md` and `c.md`"."""
    quoted = [f"`{path}`" for path in paths]
    return " and ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)
