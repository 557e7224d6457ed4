"""The web pages: chat, inbox, wire, connect, settings. The HTTP surface mounts `routes.Pages`."""
