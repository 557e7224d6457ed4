"""`toolwire conform`: checks an endpoint's tool calling, in OpenAI's and Anthropic's APIs."""
