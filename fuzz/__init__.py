"""Random tests of the laws, which are properties that hold for every input.

`generate.py` draws cases, `properties.py` lists the laws, `shrink.py` makes a failing case small, and
`run.py` runs them all.
"""
