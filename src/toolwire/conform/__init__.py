"""`toolwire conform`: checks the tool calling of any OpenAI-compatible endpoint, on both APIs."""
