"""What can go wrong between us and an upstream server, whichever way the bytes travel."""

from __future__ import annotations


class TransportFault(Exception):
    """The connection failed."""


class Unreachable(TransportFault):
    """No connection could be made."""


class NameUnknown(Unreachable):
    """The host's name could not be resolved."""


class TlsRefused(Unreachable):
    """The certificate or the handshake was not accepted."""


class TooLate(TransportFault):
    """Nothing came in time; `connecting`: not even a connection."""

    def __init__(self, *, connecting: bool = False) -> None:
        super().__init__()
        self.connecting = connecting


class Disconnected(TransportFault):
    """The server closed the connection before it answered."""


class CutOff(TransportFault):
    """The answer broke off."""


class NotHttp(TransportFault):
    """What came is not HTTP."""
