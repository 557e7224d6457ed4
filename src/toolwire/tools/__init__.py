"""The tool runtime: tools that run here, on a person's own data, and only with that person's consent.

contract.py     the types: tools, previews, decisions, approvals, grants, outcomes
records.py      approvals, grants and the audit log, in the store
approvals.py    asks a person, waits for the decision, remembers grants
rules.py        --allow rules, which decide without a person
executor.py     runs the calls of one turn: asks for all of them together, then runs them in order
loop.py         a conversation with a model of the gateway, through rounds of tools
library.py      an open vault, as its tools use it
vault_tools.py  the tools of a vault
"""
