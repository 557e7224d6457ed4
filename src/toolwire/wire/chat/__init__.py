"""The chat completions API."""
