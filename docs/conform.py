"""Writes the list of checks in docs/conform.md.

`--check` only reports whether the page is up to date.
"""

from __future__ import annotations

import sys
from pathlib import Path

from toolwire.conform.checks_shared import Check
from toolwire.conform.engine import CATALOGUE

PAGE = Path(__file__).with_name("conform.md")
BEGIN, END = "<!-- checks: written by docs/conform.py -->", "<!-- end of the checks -->"
FAMILIES = {
    "http": "Other routes",
    "chat": "Chat completions",
    "responses": "Responses",
    "messages": "Messages",
}


def section() -> str:
    required = sum(check.level == "required" for check in CATALOGUE)
    lines = [
        f"There are {len(CATALOGUE)} checks, {required} of them required. The optional checks are marked ○.",
        "",
    ]
    for family, title in FAMILIES.items():
        lines += [
            f"### {title}",
            "",
            "| check | requirement | effect if it fails | source |",
            "|---|---|---|---|",
        ]
        lines += [row(check) for check in CATALOGUE if check.family == family]
        lines.append("")
    return "\n".join(lines)


def row(check: Check) -> str:
    mark = " ○" if check.level == "optional" else ""
    cells = (
        f"`{check.id}`{mark}",
        check.demands,
        check.fails,
        check.source.replace("#/components/schemas/", ""),
    )
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def page(text: str) -> str:
    """Returns the page with a new list."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin and end, "docs/conform.md lacks the markers of its list"
    return f"{before}{BEGIN}\n\n{section()}\n{END}{after}"


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print("usage: python docs/conform.py [--check]", file=sys.stderr)
        return 2
    held = PAGE.read_text("utf-8")
    if not arguments:
        PAGE.write_text(page(held), "utf-8")
        return 0
    if page(held) == held:
        return 0
    print("docs/conform.md does not match the catalogue: run python docs/conform.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
