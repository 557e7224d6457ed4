"""JSON schemas of tools: checking of complete calls, and narrowing to what a decoder can enforce."""
