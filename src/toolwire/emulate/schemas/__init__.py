"""JSON schemas of tools: compiled, checked, and narrowed to what a grammar can express."""
