"""The terminal: a chat, one question, a conversation in a note, and the inbox of approvals.

cli.py        the four commands' arguments
chat.py       `toolwire chat`: the loop of prompts and turns; commands.py has its slash commands
ask.py        `toolwire ask`: one question, for pipes and people
note.py       `toolwire note`: a conversation that lives in a Markdown note; conversation_note.py reads and writes its format
approvals.py  `toolwire approvals`: decide from a shell what any surface asks
session.py    what they have in common: the gateway in this process, the store, the tools, who asks
cards.py      what a person is shown of a question, as rows
rules.py      --allow rules
surface.py    how a question is put: by keys, by lines, by rules
keys.py       the keys themselves, the file picker, the line editor
screen.py     where words go; painter.py paints Markdown while it is written

What needs `prompt_toolkit` and `rich` (the extra `chat`) is imported when a command runs.
"""
