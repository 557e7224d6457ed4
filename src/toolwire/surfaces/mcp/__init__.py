"""The MCP server of `toolwire mcp`: offers tools to MCP clients over stdio or HTTP, with approvals.

It needs the extra `mcp`. The official SDK is imported when the command runs.
"""
