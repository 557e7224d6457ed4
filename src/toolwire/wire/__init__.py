"""The client's side: requests decoded into turns, events encoded for OpenAI's and Anthropic's APIs.

No I/O.
"""
