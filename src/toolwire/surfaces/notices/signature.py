"""Signs the messages of a webhook and checks the signed answers of its receiver. Pure.

`Toolwire-Signature: t=UNIX,v1=HEX`, where HEX is the HMAC-SHA256 of `UNIX.BODY` with the shared secret. It
covers the exact bytes of the body and the time, so a changed or an old message does not fit.
"""

from __future__ import annotations

import hmac
import re

HEADER = "Toolwire-Signature"
WINDOW_S = 300
"""How far the time of a signature may be from now."""
_WRITTEN = re.compile(r"t=([0-9]{1,12}),v1=([0-9a-f]{64})")


def signature(secret: str, at: int, body: bytes) -> str:
    """Returns the value of the header for this body."""
    mac = hmac.digest(secret.encode(), b"%d." % at + body, "sha256")
    return f"t={at},v1={mac.hex()}"


def wrong(secret: str, header: str, body: bytes, now: float) -> str:
    """Returns why a signature does not count; "" if it does."""
    written = _WRITTEN.fullmatch(header)
    if written is None:
        return f"The header {HEADER} is missing or is not t=UNIX,v1=HEX."
    at = int(written[1])
    if not hmac.compare_digest(signature(secret, at, body), header):
        return f"The signature in {HEADER} does not fit the body."
    if abs(now - at) > WINDOW_S:
        return f"The signature in {HEADER} is more than {WINDOW_S} s old, or its clock is wrong."
    return ""
