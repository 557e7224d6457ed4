"""The settings: their types, how they are loaded, and what the first run discovers."""
