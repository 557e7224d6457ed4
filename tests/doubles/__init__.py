"""What only our own tests and benchmarks need: fake providers and agents, service launchers, hostile clients."""
