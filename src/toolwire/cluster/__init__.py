"""Several worker processes and several nodes: ownership, forwarding and supervision."""
