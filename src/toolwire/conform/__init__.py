"""`toolwire conform`: checks the tool calling of an OpenAI-compatible endpoint."""
