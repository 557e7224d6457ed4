"""The tool runtime: tools that run here, on a person's own data, and only with that person's consent.

contract.py   what a tool is, and what a person is shown of a call
records.py    approvals, grants and the audit log, in the store
approvals.py  asking, deciding, waiting, remembering
executor.py   one turn's calls: asked for together, run in order, told truly
loop.py       a conversation with any model of the gateway, through rounds of tools
"""
