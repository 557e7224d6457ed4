"""MCP servers as tools: the client side of MCP, the rules, and the pinned definitions."""
