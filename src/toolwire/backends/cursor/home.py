"""The private folder that a bridge lives in: a home, an empty workspace, its state and its temporary files. Gone with the bridge.

The bridge keeps what was said in databases below its home: they lie in memory where the system has such a place. Of our environment it sees only what
it needs to start and to reach the network; the API key is not in it, for what an agent starts would inherit it.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping

from toolwire.backends.agents.folders import in_memory, private_folder

PREFIX = "toolwire-cursor-"
PASSED_ON = (
    *("PATH", "LANG", "LC_ALL", "TZ"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS"),
)


class Home:
    """`work` is the empty folder that agents live in."""

    def __init__(self) -> None:
        self.path = private_folder(PREFIX, in_memory())
        self.work, self.home, self.state, self.temporary = (self.path / name for name in ("work", "home", "state", "tmp"))
        for folder in (self.work, self.home, self.state, self.temporary):
            folder.mkdir(mode=0o700)

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        return {
            **{name: environ[name] for name in PASSED_ON if name in environ},
            "HOME": str(self.home),
            "TMPDIR": str(self.temporary),
        }

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
