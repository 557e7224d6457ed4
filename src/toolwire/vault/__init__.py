"""A folder of Markdown notes: confined paths, reading, index, search, and planned changes.

This package knows nothing of consent: its callers (`tools/`) ask for it.
"""

from toolwire.vault.edits import Change, Edit, Edits
from toolwire.vault.graph import Graph
from toolwire.vault.index import Index, Refresh
from toolwire.vault.paths import NoteText, Vault
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
    "NoteText",
    "PathRefused",
    "Refresh",
    "Vault",
    "VaultLimits",
]
