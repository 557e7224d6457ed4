"""How a link's target and a note's path are compared. Pure."""

from __future__ import annotations

from toolwire.vault.policy import NOTES, SEARCHED, extension, key
from toolwire.vault.words import composed, folded


def link_key(name: str) -> str:
    """What a link's target is compared by: no heading, no note's extension, no case."""
    target = key(name.split("|")[0].split("#")[0].strip().removeprefix("/"))
    return target if extension(target) not in NOTES else target[: target.rfind(".")]


def link_ends(path: str, wanted: str) -> bool:
    """Whether a link may mean the path: its last names are those of the link."""
    bare = link_key(path)
    return bare == wanted or bare.endswith("/" + wanted)


def link_order(path: str, wanted: str) -> tuple[bool, int, str]:
    """Exact paths first, then those with the fewest folders, then by letters."""
    return link_key(path) != wanted, path.count("/"), path


def link_name(target: str) -> str:
    """What notes and the links to them have in common at least: the folded name, without folders and extension."""
    name = target.rpartition("/")[2].strip()
    return folded(composed(name[: -len(extension(name))] if extension(name) in SEARCHED else name))
