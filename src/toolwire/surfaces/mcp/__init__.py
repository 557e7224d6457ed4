"""`toolwire mcp`: the vault's tools and their approvals for any MCP client, over stdio or HTTP. Needs the extra `mcp`.

command.py  the command line: what is asked for, and which transport serves it
server.py   the MCP server: tools listed, calls begun, questions put to the client or left to the inbox, outcomes told
calls.py    a call under way: a task of its own that outlives the requests it is asked about
forms.py    a question as a form, and the form's answer as a decision
http.py     streamable HTTP: who may ask at all, and a client that goes away

The official SDK is imported when the command runs.
"""
