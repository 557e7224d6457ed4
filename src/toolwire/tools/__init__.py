"""The tool runtime: tools on a person's own data, which run only with that person's consent."""
