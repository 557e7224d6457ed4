"""The data types of a request and of its events, and pure functions on them. No I/O.

Only `items.py` needs a package besides the standard library. Docstrings of Toolwire mention laws by their
number: docs/architecture.md explains them.
"""
