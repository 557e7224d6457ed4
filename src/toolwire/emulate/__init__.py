"""Tool calling for models that only write text.

prompt.py      describes the tools and writes the history, for a model without tools
dialects/      the formats of calls as data, and how each is written
scanner.py     finds calls in the model's text: markers (openers.py), then a grammar, then text again
openers.py     where a call may begin: at a marker, outside of code and quotations
grammars/      read the block after a marker: the tool's name and its arguments
arguments.py   turns the JSON that models write into strict JSON
native.py      repairs the arguments from servers with native tools
thoughts.py    separates reasoning from the answer
tools.py       matches the name that a model wrote to a declared tool; custom tools as functions
schemas/       constrains decoders to the client's schemas, and checks calls against them
"""
