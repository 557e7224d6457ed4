"""The terminal: a chat, a single question, a conversation in a note, and the inbox.

Modules that need `prompt_toolkit` and `rich` (the extra `chat`) are imported when a command runs.
"""
