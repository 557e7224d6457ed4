"""The tool runtime: tools on a vault and on MCP servers, which run only with a person's consent."""
