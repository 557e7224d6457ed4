"""Random tests of the laws.

`generate.py` draws cases, `properties.py` lists the laws, `shrink.py` makes a failing case small, `run.py`
drives.
"""
