"""`toolwire replay FILE`: runs a turn of the journal through this version of Toolwire.

Exit status 0: the client would get the same; 1: something else; 2: the file cannot be read or compared.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from toolwire.core.display import one_line

SAME, DIFFERENT, UNREADABLE = 0, 1, 2
WIDTH = 400


def replay_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        metavar="FILE",
        help="a fixture: downloaded from the wire page, or from the folder journal/turns",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object, for scripts")


def run_replay(arguments: argparse.Namespace) -> int:
    import json

    from toolwire.observe.fixture import read
    from toolwire.observe.recording import RecordingError
    from toolwire.observe.replay import replay

    try:
        told = replay(read(Path(arguments.file).read_bytes().splitlines()))
    except OSError as error:
        print(f"toolwire: {arguments.file}: {error.strerror or error}", file=sys.stderr)
        return UNREADABLE
    except RecordingError as error:
        print(f"toolwire: {arguments.file}: {one_line(str(error), 400)}", file=sys.stderr)
        return UNREADABLE
    if arguments.json:
        print(json.dumps(told.as_json()))
    elif told.same:
        print("same: the client would get what it got")
    else:
        for one in told.differences:
            print(f"{one_line(one['where'])}\n  then  {_line(one['then'])}\n  now   {_line(one['now'])}")
        count = len(told.differences)
        print(f"different: {count} {'place' if count == 1 else 'places'}")
    return SAME if told.same else DIFFERENT


def _line(text: str) -> str:
    text = text.replace("\r", "\\r").replace("\n", "\\n")
    shown = "".join(
        character if character.isprintable() else f"\\x{ord(character):02x}" for character in text[:WIDTH]
    )
    return shown + ("…" if len(text) > WIDTH else "") if text else "(nothing)"
