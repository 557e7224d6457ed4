"""Queries for links, tags, folders, tasks and properties; and the paths of daily notes.

The path in a link is looked up relative to the root, and then relative to the folder of the linking note. If
no note is found, the link leads to a note whose path ends with the path in the link. If there are several, it
leads to the one nearest to the root. A link that begins with `./` or `../` is only looked up relative to the
folder of the linking note. All results are sorted and have at most `most` entries.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections import Counter
from dataclasses import dataclass
from datetime import date
from typing import Any

from toolwire.vault.frontmatter import Value
from toolwire.vault.index import Index
from toolwire.vault.notes import link_key, link_name
from toolwire.vault.paths import OPEN_FILE, Vault
from toolwire.vault.policy import SEARCHED, PathRefused, extension, key
from toolwire.vault.words import storable

MOST = 1000
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Graph:
    """The queries of one index. Their results are JSON values."""

    index: Index

    def _rows(self, query: str, *values: Any) -> list[Row]:
        return self.index.ask(lambda connection: _named(connection.execute(query, values)))

    def links(self, path: str, most: int = MOST) -> list[Row]:
        """Returns the links of a note, in the order of its text.

        In each link, `path` is the path of the linked note, or None if the vault has no such note.
        `attachment`: whether the target is a file that is not a note.
        """
        asked = (
            "SELECT target, heading, alias, line, embed FROM links JOIN notes ON notes.id = note "
            "WHERE path = ? ORDER BY number LIMIT ?"
        )

        def question(connection: sqlite3.Connection) -> list[Row]:
            found = _named(connection.execute(asked, (storable(path), most)))
            for link in found:
                target = link["target"]
                meant = next(iter(resolved(connection, target, path)), None) if target else path
                attached = meant is None and _attachment(target)
                link |= {"embed": bool(link["embed"]), "path": meant, "attachment": attached}
            return found

        return self.index.ask(question)

    def backlinks(self, path: str, most: int = MOST) -> list[Row]:
        """Returns the links from other notes to a note, sorted by path and by the order in the text."""
        asked = (
            "SELECT path, target, line, alias, heading, embed FROM links JOIN notes ON notes.id = note "
            "WHERE links.name_key = ? ORDER BY path, number"
        )

        def question(connection: sqlite3.Connection) -> list[Row]:
            meant: dict[tuple[str, str], bool] = {}
            found: list[Row] = []
            for link in _named(connection.execute(asked, (link_name(storable(path)),))):
                source, target = link["path"], link.pop("target")
                written = (target, source.rpartition("/")[0])
                if written not in meant:
                    meant[written] = next(iter(resolved(connection, target, source)), None) == path
                if meant[written] and source != path and len(found) < most:
                    found.append(link | {"embed": bool(link["embed"])})
            return found

        return self.index.ask(question)

    def tags(self, most: int = MOST) -> list[Row]:
        """Returns all tags, each with the number of its notes, the most used first. Ignores case."""
        asked = "SELECT min(tag) AS tag, count(*) AS notes FROM tags GROUP BY key"
        return self._rows(f"{asked} ORDER BY notes DESC, key LIMIT ?", most)

    def tagged(self, tag: str, most: int = MOST) -> list[str]:
        """Returns the paths of the notes with this tag, or with a tag nested in it."""
        wanted = key(storable(tag).strip().lstrip("#").strip("/"))
        asked = (
            "SELECT DISTINCT path FROM tags JOIN notes ON notes.id = note "
            "WHERE key = ? OR (key > ? AND key < ?) ORDER BY path LIMIT ?"
        )
        return [row["path"] for row in self._rows(asked, wanted, f"{wanted}/", f"{wanted}0", most)]

    def listing(self, folder: str = "", depth: int = 1, most: int = MOST) -> Row:
        """Returns the content of a folder and of its subfolders down to `depth`.

        Each folder has the number of notes in it and in its subfolders. Deeper notes are counted but not
        listed.
        """
        self.index.vault.policy.segments(folder, folder=True)
        prefix = f"{folder}/" if folder else ""
        asked = "SELECT path, size FROM notes WHERE path >= ? AND path < ? ORDER BY path"
        counts: Counter[str] = Counter()
        files = []
        for row in self._rows(asked, prefix, f"{folder}0" if folder else "\U0010ffff"):
            names = row["path"][len(prefix) :].split("/")
            counts.update(prefix + "/".join(names[:level]) for level in range(1, min(len(names), depth + 1)))
            if len(names) <= depth:
                files.append(row)
        folders = [{"path": path, "notes": count} for path, count in sorted(counts.items())]
        truncated = len(files) > most or len(folders) > most
        return {"folders": folders[:most], "files": files[:most], "truncated": truncated}

    def tasks(self, status: str = "all", under: str = "", most: int = MOST) -> list[Row]:
        """Returns the tasks of the folder or note `under`. `status`: `open`, `done` or `all`.

        Raises `PathRefused` if `under` is neither a note nor a folder that contains notes.
        """
        path = storable(under).rstrip("/")
        prefix = f"{path}/" if path else ""
        where = "(path = ? OR substr(path, 1, ?) = ?)"
        place = (path, len(prefix), prefix)
        if path and not self._rows(f"SELECT 1 FROM notes WHERE {where} LIMIT 1", *place):
            raise PathRefused(under, "not found", "missing")
        asked = f"SELECT path, line, text, status FROM tasks JOIN notes ON notes.id = note WHERE {where}"
        asked += {"all": "", "done": " AND status IN ('x', 'X')", "open": " AND status = ' '"}[status]
        rows = self._rows(f"{asked} ORDER BY path, line LIMIT ?", *place, most)
        return [row | {"done": row.pop("status") in "xX"} for row in rows]

    def properties(self, path: str) -> dict[str, Value]:
        """Returns a note's frontmatter."""
        asked = (
            "SELECT name, value FROM properties JOIN notes ON notes.id = note WHERE path = ? ORDER BY name"
        )
        return {row["name"]: json.loads(row["value"]) for row in self._rows(asked, storable(path))}

    def property_names(self, most: int = MOST) -> list[Row]:
        """Returns the names of properties with the number of notes that have them."""
        asked = "SELECT name, count(*) AS notes FROM properties GROUP BY name"
        return self._rows(f"{asked} ORDER BY notes DESC, name LIMIT ?", most)


def _named(cursor: sqlite3.Cursor) -> list[Row]:
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor]


def resolved(connection: sqlite3.Connection, name: str, source: str = "") -> list[str]:
    """Returns the notes that the link `name` in the note `source` may mean, the best first."""
    wanted = link_key(storable(name))
    if not wanted:
        return []
    rows = connection.execute("SELECT path FROM notes WHERE name_key = ?", (link_name(wanted),))
    keys = {path: link_key(path) for (path,) in rows}
    beside = _joined(key(source.rpartition("/")[0]), wanted)
    if wanted.startswith(("./", "../")):
        return sorted(path for path in keys if keys[path] == beside)
    found = [path for path in keys if f"/{keys[path]}".endswith(f"/{wanted}")]
    return sorted(found, key=lambda path: (keys[path] != wanted, keys[path] != beside, path.count("/"), path))


def _joined(folder: str, target: str) -> str | None:
    """Returns the path of a target relative to a folder; None if it would leave the vault."""
    names = folder.split("/") if folder else []
    for name in target.split("/"):
        if name == "..":
            if not names:
                return None
            names.pop()
        elif name not in ("", "."):
            names.append(name)
    return "/".join(names)


def _attachment(target: str) -> bool:
    found = extension(target.rpartition("/")[2])
    return found != "" and found not in SEARCHED and found[1:].isalnum() and len(found) <= 6


# --- daily notes ---

MOST_SETTINGS_BYTES = 64 * 1024
_MONTHS = "January February March April May June July August September October November December".split()
_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()


def daily_path(vault: Vault, day: date) -> str:
    """Returns the path of a day's note, as Obsidian's settings or defaults define it.

    The note may not exist yet.
    """
    settings = _daily_settings(vault)
    folder, pattern = (
        value.strip() if isinstance(value := settings.get(name), str) else "" for name in ("folder", "format")
    )
    return f"{folder.strip('/')}/{formatted(pattern or 'YYYY-MM-DD', day)}.md".removeprefix("/")


def _daily_settings(vault: Vault) -> dict[str, Any]:
    """Reads `.obsidian/daily-notes.json`. Toolwire reads no other hidden file of a vault.

    Returns an empty dict if the file is missing or cannot be used.
    """
    try:
        folder, _ = vault.open_folder((".obsidian",), ".obsidian")
        try:
            fd = os.open("daily-notes.json", OPEN_FILE, dir_fd=folder)
        finally:
            os.close(folder)
        try:
            found = json.loads(os.read(fd, MOST_SETTINGS_BYTES))
        finally:
            os.close(fd)
    except (PathRefused, OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def formatted(pattern: str, day: date) -> str:
    """Formats `day` with a pattern in the syntax of Moment.js, which Obsidian uses.

    Text that is no placeholder of this syntax is kept.
    """
    year, week, weekday = day.isocalendar()
    number_in_year = day.timetuple().tm_yday
    ending = "th" if 11 <= day.day <= 13 else {1: "st", 2: "nd", 3: "rd"}.get(day.day % 10, "th")
    values: dict[str, object] = {  # longer names first, because the pattern takes the first that matches
        "YYYY": f"{day.year:04}",
        "YY": f"{day.year % 100:02}",
        "MMMM": _MONTHS[day.month - 1],
        "MMM": _MONTHS[day.month - 1][:3],
        "MM": f"{day.month:02}",
        "M": day.month,
        "DDDD": f"{number_in_year:03}",
        "DDD": number_in_year,
        "Do": f"{day.day}{ending}",
        "DD": f"{day.day:02}",
        "D": day.day,
        "dddd": _DAYS[weekday - 1],
        "ddd": _DAYS[weekday - 1][:3],
        "E": weekday,
        "gggg": year,
        "GGGG": year,
        "ww": f"{week:02}",
        "WW": f"{week:02}",
        "w": week,
        "W": week,
        "Q": (day.month - 1) // 3 + 1,
    }
    parts = rf"\[([^\]]*)\]|{'|'.join(values)}"
    return re.sub(parts, lambda found: str(values.get(found[0], found[1])), pattern)
