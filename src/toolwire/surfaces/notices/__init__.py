"""Notices: messages to a person about approval requests that wait, by webhook or ntfy."""
