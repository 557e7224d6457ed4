"""The settings: their types, how they are loaded, and the models that need no settings."""
