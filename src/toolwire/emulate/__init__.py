"""Tool calling for models that only write text.

prompt.py      describes the tools to the model, and writes the history of the conversation as text
dialects/      the formats of calls as data, and functions that write calls in each format
scanner.py     finds calls in the model's text
openers.py     finds where a call may begin: at a marker, but not in code or in a quotation
grammars/      read the block after a marker: the tool's name and its arguments
arguments.py   turns the JSON that models write into strict JSON
native.py      repairs the arguments of a server's own tool calls
thoughts.py    separates reasoning from the answer
tools.py       finds the tool that a model means by a name, and offers custom tools as functions
schemas/       makes decoders follow the client's schemas, and checks calls against the schemas
"""
