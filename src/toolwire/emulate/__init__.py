"""Tool calling for models that only write text.

prompt.py      describes the tools and writes the history, for a model without tools
dialects/      the formats of calls as data, and how each is written
scanner.py     finds calls in the model's text: markers (openers.py), then a grammar, then text again
grammars/      read the block after a marker: the tool's name and its arguments
arguments.py   turns the JSON that models write into strict JSON
native.py      does the same for servers with native tools
quotations.py  keeps quotations and code from making calls
thoughts.py    separates reasoning from the answer
registry.py    matches the name that a model wrote to a declared tool
freeform.py    offers custom tools as functions
schemas/       checks calls against the client's schemas, and constrains decoders to them
"""
