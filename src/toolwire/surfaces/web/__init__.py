"""The web pages: chat, inbox, wire, connect, settings."""
