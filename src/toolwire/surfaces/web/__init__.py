"""The web pages: chat with approvals, the inbox, the wire inspector, connect and settings. `routes.Pages` is what the HTTP surface mounts."""
