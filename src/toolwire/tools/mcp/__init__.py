"""MCP servers as tools: transport, servers, pinned definitions, rules."""
