"""A folder of Markdown notes: confined paths, reading, index, search, and planned changes.

This package knows nothing of consent: its callers (`tools/`) ask for it.
"""
