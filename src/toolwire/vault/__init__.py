"""A folder of Markdown notes: safe paths, reading, index, search, and planned changes.

This package does not ask for approval before it reads or changes notes; its callers in `tools/` do.
"""
