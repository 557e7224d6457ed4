"""Random tests of laws: properties of the code that must hold for every input.

`generate.py` draws cases, `properties.py` lists the laws, `run.py` tests all laws, and `shrink.py` makes a
failing case smaller.
"""
