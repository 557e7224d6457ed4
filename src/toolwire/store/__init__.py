"""Data that outlives a request, in a SQLite file or in PostgreSQL."""
