"""JSON schemas of tools: checks complete calls, and narrows schemas for decoders."""
