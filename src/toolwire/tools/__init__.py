"""The tool runtime: tools that run here, on a person's own data, and only with that person's consent."""
