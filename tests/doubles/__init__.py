"""What only our own tests and benchmarks need: judges, fake providers and agents, service launchers, hostile
clients.
"""
