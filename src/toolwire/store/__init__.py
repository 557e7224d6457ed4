"""What outlives a request: SQLite or PostgreSQL."""
