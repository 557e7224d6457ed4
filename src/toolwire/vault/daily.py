"""The path of a day's note, by Obsidian's setting or its default."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from datetime import date

from toolwire.vault.paths import OPEN_FILE, Vault
from toolwire.vault.policy import PathRefused

DEFAULT_FORMAT = "YYYY-MM-DD"
MOST_BYTES = 64 * 1024
_PART = re.compile(r"\[([^\]]*)\]|YYYY|YY|MMMM|MMM|MM|M|DDDD|DDD|Do|DD|D|dddd|ddd|E|gggg|GGGG|ww|WW|w|W|Q")
_MONTHS = ("January February March April May June July August September October November December").split()
_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()


@dataclass(frozen=True, slots=True)
class DailySettings:
    folder: str = ""
    format: str = DEFAULT_FORMAT


def daily_settings(vault: Vault) -> DailySettings:
    """Reads `.obsidian/daily-notes.json`, the only hidden file that is read; the default if there is none."""
    try:
        folder, _ = vault.open_folder((".obsidian",), ".obsidian")
    except PathRefused:
        return DailySettings()
    try:
        fd = os.open("daily-notes.json", OPEN_FILE, dir_fd=folder)
    except OSError:
        return DailySettings()
    finally:
        os.close(folder)
    try:
        found = json.loads(os.read(fd, MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return DailySettings()
    finally:
        os.close(fd)
    values = found if isinstance(found, dict) else {}
    where, pattern = (
        value.strip() if isinstance(value := values.get(name), str) else "" for name in ("folder", "format")
    )
    return DailySettings(where.strip("/"), pattern or DEFAULT_FORMAT)


def daily_path(settings: DailySettings, day: date) -> str:
    """The path of a day's note; it may not exist yet."""
    name = formatted(settings.format, day)
    return f"{settings.folder}/{name}.md" if settings.folder else f"{name}.md"


def formatted(pattern: str, day: date) -> str:
    """A date in the format of Moment, which Obsidian uses; other text stays."""
    week = day.isocalendar()
    ordinal = (
        f"{day.day}{'th' if 11 <= day.day <= 13 else {1: 'st', 2: 'nd', 3: 'rd'}.get(day.day % 10, 'th')}"
    )
    values = {
        "YYYY": f"{day.year:04}",
        "YY": f"{day.year % 100:02}",
        "MMMM": _MONTHS[day.month - 1],
        "MMM": _MONTHS[day.month - 1][:3],
        "MM": f"{day.month:02}",
        "M": str(day.month),
        "DDDD": f"{day.timetuple().tm_yday:03}",
        "DDD": str(day.timetuple().tm_yday),
        "Do": ordinal,
        "DD": f"{day.day:02}",
        "D": str(day.day),
        "dddd": _DAYS[day.weekday()],
        "ddd": _DAYS[day.weekday()][:3],
        "E": str(week.weekday),
        "gggg": str(week.year),
        "GGGG": str(week.year),
        "ww": f"{week.week:02}",
        "WW": f"{week.week:02}",
        "w": str(week.week),
        "W": str(week.week),
        "Q": str((day.month - 1) // 3 + 1),
    }
    return _PART.sub(lambda found: found[1] if found[1] is not None else values[found[0]], pattern)
