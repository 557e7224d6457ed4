"""Helpers of tests and benchmarks: judges, fake providers and agents, servers, clients."""
