"""A folder of Markdown notes: confined paths, notes read, indexed and searched, and changed by plans. No consent here: who calls has it."""

from toolwire.vault.edits import Change, Edit, Edits
from toolwire.vault.graph import Graph
from toolwire.vault.index import Index, Refresh
from toolwire.vault.paths import NoteStat, NoteText, Vault
from toolwire.vault.policy import PathRefused, VaultLimits
from toolwire.vault.search import Found, Hit

__all__ = [
    "Change",
    "Edit",
    "Edits",
    "Found",
    "Graph",
    "Hit",
    "Index",
    "NoteStat",
    "NoteText",
    "PathRefused",
    "Refresh",
    "Vault",
    "VaultLimits",
]
