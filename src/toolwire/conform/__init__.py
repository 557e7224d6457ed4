"""`toolwire conform`: judges the tool calling of any endpoint, on OpenAI's and Anthropic's APIs."""
