"""The vault's tools and their approvals for MCP clients, over stdio or HTTP.

Needs the extra `mcp`. The official SDK is imported when the command runs.
"""
