"""Who may use the gateway, and how much: API keys, limits, budgets and usage."""
