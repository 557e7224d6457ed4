"""The client's side: requests decoded into turns, events encoded as OpenAI's APIs. No I/O."""
