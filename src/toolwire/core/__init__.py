"""The data types of a request and of its events, and pure functions on them. No I/O.

Only `items.py` needs a package besides the standard library. A docstring that says "law 5" refers to one of
the numbered design rules in docs/architecture.md.
"""
