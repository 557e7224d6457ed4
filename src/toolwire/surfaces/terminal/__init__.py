"""The terminal commands: a chat, a single question, a conversation in a note, approvals, and the tour.

Modules that need `prompt_toolkit` and `rich` (the extra `chat`) are imported when a command runs.
"""
