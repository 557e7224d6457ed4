"""Decodes requests of OpenAI's and Anthropic's APIs into turns, and encodes events for clients. No I/O."""
