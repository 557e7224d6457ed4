"""Stored data, in a SQLite file or in PostgreSQL."""
