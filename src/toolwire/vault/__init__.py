"""A folder of Markdown notes: safe paths, reading, index, search, and planned changes.

This package does not ask for consent; its callers in `tools/` do.
"""
