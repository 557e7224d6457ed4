"""Invisible characters are written out wherever a person decides: terminal, pages, forms and lists."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
import time
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from toolwire.core import display
from toolwire.observe import logs
from toolwire.surfaces import cards, conversation_note
from toolwire.surfaces.mcp import forms
from toolwire.surfaces.terminal.keyboard import Picker
from toolwire.tools.contract import Approval, Outcome, Preview, ToolCall, Touched

STATIC = Path(display.__file__).parents[1] / "surfaces" / "web" / "static"
DEFAULT_IGNORABLE = (
    (0xAD, 0xAD),
    (0x34F, 0x34F),
    (0x61C, 0x61C),
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    (0x200B, 0x200F),
    (0x202A, 0x202E),
    (0x2060, 0x206F),
    (0x3164, 0x3164),
    (0xFE00, 0xFE0F),
    (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0),
    (0xFFF0, 0xFFF8),
    (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A),
    (0xE0000, 0xE0FFF),
)
"""Unicode's Default_Ignorable_Code_Point with unassigned code points (DerivedCoreProperties.txt, 16)."""
OTHERS = (
    (0x00, 0x08),  # controls
    (0x0B, 0x1F),
    (0x7F, 0x9F),
    (0x2028, 0x2029),  # line and paragraph separator
    (0x2800, 0x2800),  # braille blank
    (0xD800, 0xDFFF),  # half characters
    (0xE000, 0xF8FF),  # private use
    (0xFFF9, 0xFFFB),  # interlinear annotation
    (0xF0000, 0xFFFFD),  # private use
    (0x100000, 0x10FFFD),
)


def letters(*tables: tuple[tuple[int, int], ...]) -> list[str]:
    return [chr(code) for table in tables for first, last in table for code in range(first, last + 1)]


UNSEEN = letters(DEFAULT_IGNORABLE, OTHERS)


def test_everything_that_nobody_sees_is_written_out() -> None:
    for letter in UNSEEN:
        written = display.clean(f"a{letter}b")
        assert letter not in written and len(written) > 2, f"U+{ord(letter):04X}"
        assert display.clean(written) == written


VISIBLE_FORMATS = (
    (0x600, 0x605),  # Arabic signs that are drawn around or above digits
    (0x6DD, 0x6DD),
    (0x890, 0x891),
    (0x8E2, 0x8E2),
    (0x110BD, 0x110BD),  # Kaithi number signs
    (0x110CD, 0x110CD),
)
"""The only characters of Unicode's category Cf (format) that have a glyph."""


def test_the_table_agrees_with_the_unicode_data_of_this_python() -> None:
    """Also for characters that a later version of Unicode adds: they would be missing in the table."""
    kept = {"\t", "\n", *letters(VISIBLE_FORMATS)}
    for code in range(sys.maxunicode + 1):
        letter = chr(code)
        category, direction = unicodedata.category(letter), unicodedata.bidirectional(letter)
        unseen = category in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") and letter not in kept
        turns = direction in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI", "BN")
        # A noncharacter can be in no text, and has no glyph.
        none = code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF
        filler = unicodedata.name(letter, "").endswith(("HANGUL FILLER", "SCRIPT FILLER", "PATTERN BLANK"))
        selector = "VARIATION SELECTOR" in unicodedata.name(letter, "")
        if unseen or turns or none or filler or selector:
            assert display.clean(letter) != letter, f"U+{code:04X}"


def test_text_without_invisible_characters_is_shown_as_fast_as_before() -> None:
    text = "Ein gewöhnlicher Satz, 漢字 und العربية.\n" * 20_000
    began = time.process_time()
    assert display.clean(text) == text and display.escaped(text) == text
    assert time.process_time() - began < 0.5


def test_ordinary_text_stays_as_it_is() -> None:
    known = {code for first, last in display.INVISIBLE for code in range(first, last + 1)}
    rest = "".join(chr(code) for code in range(sys.maxunicode + 1) if code not in known)
    assert display.clean(rest) == rest
    assert display.clean("naïve 漢字 العربية हिन्दी 😀\t\n") == "naïve 漢字 العربية हिन्दी 😀\t\n"


def test_prose_keeps_the_joiners_of_emoji_and_words_and_nothing_else() -> None:
    kept = [letter for letter in UNSEEN if display.prose(letter) == letter]
    assert kept == ["\u200c", "\u200d", *map(chr, range(0xFE00, 0xFE10))]


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
@pytest.mark.process
def test_the_pages_write_out_the_same_over_all_of_unicode(tmp_path: Path) -> None:
    (tmp_path / "invisible.mjs").write_text((STATIC / "invisible.js").read_text("utf-8"))
    code = """
    import { visible, escaped, prose } from './invisible.mjs'
    const out = { marked: [], ignorable: [], wrong: [], kept: [] }
    for (let code = 0; code <= 0x10ffff; code += 1) {
      const one = String.fromCodePoint(code)
      const hex = code.toString(16).toUpperCase().padStart(4, '0')
      if (visible(one) !== one) {
        out.marked.push(code)
        const same = code === 13 || JSON.parse(`"${escaped(one)}"`) === one
        if (visible(one) !== `⟨U+${hex}⟩` || !same) out.wrong.push(code)
        if (prose(one) === one) out.kept.push(code)
      }
      if (/\\p{Default_Ignorable_Code_Point}/u.test(one)) out.ignorable.push(code)
    }
    console.log(JSON.stringify(out))
    """
    (tmp_path / "run.mjs").write_text(code)
    done = subprocess.run(["node", "run.mjs"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[int]] = json.loads(done.stdout)
    assert found["wrong"] == []
    assert found["kept"] == [13, 0x200C, 0x200D, *range(0xD800, 0xE000), *range(0xFE00, 0xFE10)]
    assert found["marked"] == [
        code for code in range(sys.maxunicode + 1) if display.clean(chr(code)) != chr(code)
    ]
    assert set(found["ignorable"]) <= set(found["marked"])  # as the Unicode tables of node have it


# --- every place ---

EVIL = (
    "x"
    + "".join(letter for letter in UNSEEN if not 0xE000 <= ord(letter) <= 0xF8FF and ord(letter) < 0xE0100)
    + "y"
)


def question(stage: Any = "run", **shown_: Any) -> Approval:
    touched = (Touched(EVIL, f"Notes/{EVIL}.md", 10, EVIL), Touched("gone", EVIL, missing=True, reason=EVIL))
    facts = (("Server", EVIL), ("The server says", f"{EVIL}\n{EVIL}"), (EVIL, EVIL))
    preview = Preview(
        touched,
        facts=facts,
        content=f"{EVIL}\n{EVIL}",
        **{"diff": f"--- a\n+++ b\n@@ -1 +1 @@\n-{EVIL}\n+{EVIL}", "summary": EVIL, **shown_},
    )
    arguments = {"filePath": EVIL, EVIL: [EVIL, {"deep": EVIL}], "one": {EVIL: 1}}
    return Approval(
        "appr_1", 0, 1, "", EVIL, "mcp", EVIL, EVIL, stage, arguments, preview, "t", decided_by=EVIL
    )


def hidden(text: str) -> set[str]:
    return set(text) & set(UNSEEN)


@pytest.mark.parametrize("stage", ["run", "share"])
@pytest.mark.parametrize("whole", [False, True])
def test_a_card_hides_nothing(stage: Any, whole: bool) -> None:
    for asked in (question(stage), question(stage, problem=EVIL), question(stage, pick=True)):
        assert not hidden(cards.plain(cards.card(asked, None, whole=whole)))


def test_a_whole_card_cuts_no_argument() -> None:
    asked = Approval(
        "appr_1", 0, 1, "", "s", "mcp", "m", "t", "run", {"a": "\u200b" * 500 + "end"}, Preview(), "t"
    )
    assert "end" in cards.plain(cards.card(asked, None, whole=True))


def test_a_form_hides_nothing() -> None:
    for asked in (question("share", pick=True), question(problem=EVIL)):
        assert not hidden(forms.message(asked, None))
        assert not hidden(json.dumps(forms.schema(asked), ensure_ascii=False))


def test_the_picker_and_the_lines_of_a_turn_hide_nothing() -> None:
    assert not hidden("".join(str(part[1]) for part in Picker(question().shown, "run").text()))
    call = ToolCall("c", EVIL, EVIL)
    outcomes = [
        Outcome(call, {}, "done", shared=(EVIL,), unread=((EVIL, EVIL),)),
        Outcome(call, {}, "failed", notice=EVIL),
    ]
    rows = [*cards.called([call]), *(row for one in outcomes for row in cards.did(one))]
    assert not hidden(cards.plain(rows))


def test_json_for_a_terminal_hides_nothing_and_loses_nothing() -> None:
    whole = "".join(
        letter for letter in EVIL if not "\ud800" <= letter <= "\udfff"
    )  # two halves would become one character
    value = {"a": whole, whole: ["é 漢字", whole]}
    written = display.as_json(value)
    assert not hidden(written) and "é 漢字" in written and json.loads(written) == value


def test_a_line_of_the_log_hides_nothing() -> None:
    whole = "".join(letter for letter in EVIL if not "\ud800" <= letter <= "\udfff")
    record = logging.LogRecord("toolwire.tools", logging.WARNING, "", 1, "said %s", (whole,), None)
    for formatter in (logs.TextFormatter(), logs.JsonFormatter()):
        line = formatter.format(record)
        assert not hidden(line) and "\n" not in line
    assert json.loads(line)["message"] == f"said {whole}"
    fielded = logging.makeLogRecord({"fields": {"event": "request", "path": whole, "key_name": whole}})
    for formatter in (logs.TextFormatter(), logs.JsonFormatter()):
        assert not hidden(formatter.format(fielded))


def test_a_note_of_a_conversation_hides_nothing_but_the_joiners_of_emoji_and_words() -> None:
    calls = [{"id": "c", "function": {"name": EVIL, "arguments": json.dumps({EVIL: EVIL, "a": [EVIL]})}}]
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": EVIL},
        {"role": "assistant", "content": EVIL, "tool_calls": calls},
        {"role": "user", "content": f"{EVIL}\r\nnext"},
    ]
    written = conversation_note.render(messages, EVIL, {"c": ({"a": EVIL}, {"a": EVIL, "b": EVIL})})
    assert hidden(written) == {"\u200c", "\u200d", *map(chr, range(0xFE00, 0xFE10))}
    with_calls = written[written.index("=begin-") : written.index("=end-")]
    assert not hidden(with_calls)
