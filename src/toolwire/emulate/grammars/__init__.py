"""The grammars of tool calls in text, one module for each family of formats."""
