"""Signs the messages to a webhook, and checks the signed answers of its receiver.

The header is `Toolwire-Signature: t=UNIX,v1=HEX`. HEX is the HMAC-SHA256 of `UNIX.BODY` with the shared
secret. The signature covers the time and the exact bytes of the body, so a changed or an old message is
refused. The module has no side effects.
"""

from __future__ import annotations

import hmac
import re

HEADER = "Toolwire-Signature"
WINDOW_S = 300
"""How many seconds the time of a signature may differ from the current time."""
_WRITTEN = re.compile(r"t=([0-9]{1,12}),v1=([0-9a-f]{64})")


def signature(secret: str, at: int, body: bytes) -> str:
    """Returns the value of the header for this body."""
    mac = hmac.digest(secret.encode(), b"%d." % at + body, "sha256")
    return f"t={at},v1={mac.hex()}"


def wrong(secret: str, header: str, body: bytes, now: float) -> str:
    """Returns why the signature in `header` is not valid; "" if it is valid."""
    written = _WRITTEN.fullmatch(header)
    if written is None:
        return f"The header {HEADER} is missing or is not t=UNIX,v1=HEX."
    at = int(written[1])
    if not hmac.compare_digest(signature(secret, at, body), header):
        return f"The signature in {HEADER} does not fit the body."
    if abs(now - at) > WINDOW_S:
        return f"The signature in {HEADER} is more than {WINDOW_S} s old, or its clock is wrong."
    return ""
