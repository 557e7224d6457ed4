"""A folder of Markdown notes: confined paths, reading, index, search, and planned changes.

This package does not ask for consent; its callers in `tools/` do.
"""
