"""The settings: their types, how they are loaded, and the models that are found without any."""
