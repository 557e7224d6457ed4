"""Records of the servers that run on this machine, for commands such as `toolwire open`.

Each server writes one file to the folder `running` of the data folder: its process, its address, and a random
secret. The file is private to the user. A record may be out of date, for example after a power failure, so a
command trusts it only if the server proves that it knows the secret. The command and the server send each
other a proof, never the secret itself, so another program that now uses the port does not learn the secret.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import logging
import os
import secrets
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ASK_PATH = "/ui/api/session/open"
ASK_S = 5.0
IDENTIFY_S = 1.0
"""How long `is_toolwire` waits. This is short, because a Toolwire on this machine answers at once."""
FOLDER = "running"
LARGEST = 65536

log = logging.getLogger("toolwire.http")


@dataclass(frozen=True, slots=True)
class RunningServer:
    """The record of a server."""

    pid: int
    url: str
    """The address of the web pages. The API is at `url` + "/v1"."""
    started: float
    secret: str
    temporary: bool = False
    """Whether the server was started for a single client and ends with that client."""

    @property
    def port(self) -> int:
        parts = urlsplit(self.url)
        return parts.port or (443 if parts.scheme == "https" else 80)


def data_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Returns the folder for Toolwire's data: TOOLWIRE_DATA, or the user's folder for data."""
    env = os.environ if environ is None else environ
    if env.get("TOOLWIRE_DATA"):
        return Path(env["TOOLWIRE_DATA"]).expanduser()
    if env.get("XDG_DATA_HOME"):
        return Path(env["XDG_DATA_HOME"]) / "toolwire"
    return Path("~/.local/share/toolwire").expanduser()


def proof(secret: str, side: str, nonce: str) -> str:
    """Returns the proof that `side` ("command" or "server") knows the secret."""
    return hmac.new(secret.encode(), f"{side} {nonce}".encode("utf-8", "replace"), hashlib.sha256).hexdigest()


# --- the server's side


def write(server: RunningServer) -> Path | None:
    """Writes the record of this server and returns its path.

    Returns None if the record cannot be written. The server then runs without a record.
    """
    try:
        folder = data_folder() / FOLDER
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _remove_old(folder)
        path = folder / f"{server.pid}.json"
        new = folder / f"{server.pid}.{secrets.token_hex(4)}.tmp"
        try:
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(asdict(server), file)
            new.replace(path)
        except BaseException:
            new.unlink(missing_ok=True)
            raise
        return path
    except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home
        reason = error.strerror if isinstance(error, OSError) else str(error)
        log.warning("toolwire open cannot find this server: its record cannot be written: %s", reason)
        return None


def remove(path: Path | None) -> None:
    if path is not None:
        with suppress(OSError):
            path.unlink()


def _remove_old(folder: Path) -> None:
    """Deletes the files of servers that ended without deleting their record."""
    for path in folder.iterdir():
        pid = path.name.partition(".")[0]
        if pid.isdecimal() and not _is_alive(int(pid)):
            remove(path)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


# --- the command's side


def running() -> list[RunningServer]:
    """Returns the servers that run now, newest first. Records that are out of date are ignored."""
    try:
        paths = list((data_folder() / FOLDER).glob("*.json"))
    except (OSError, RuntimeError):
        return []
    records = [record for record in map(_read, paths) if record is not None]
    found = [record for record in records if _is_alive(record.pid) and ask(record) is not None]
    return sorted(found, key=lambda record: record.started, reverse=True)


def _read(path: Path) -> RunningServer | None:
    try:
        value = json.loads(path.read_bytes()[:LARGEST])
        record = RunningServer(
            int(value["pid"]),
            str(value["url"]),
            float(value["started"]),
            str(value["secret"]),
            bool(value["temporary"]),
        )
        return record if record.pid > 0 and record.port else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def ask(server: RunningServer, link: bool = False) -> dict[str, Any] | None:
    """Asks the server for a proof and, with `link`, for a one-time path that signs in a browser.

    Returns None if the server does not answer, or if the answer is not from the server of this record.
    """
    nonce = secrets.token_urlsafe(16)
    body = {"nonce": nonce, "proof": proof(server.secret, "command", nonce), "link": link}
    try:
        status, raw = request(server.url + ASK_PATH, body, verify=False)
        answer = json.loads(raw)
        known = hmac.compare_digest(str(answer["proof"]), proof(server.secret, "server", nonce))
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, RecursionError):
        return None
    return answer if status == 200 and known else None


def is_toolwire(url: str) -> bool:
    """Returns whether a Toolwire server answers at this address. It may belong to another user."""
    try:
        status, raw = request(url + "/", verify=False, timeout_s=IDENTIFY_S)
        return status == 200 and json.loads(raw)["name"] == "toolwire"
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, RecursionError):
        return False


def request(
    url: str,
    body: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    verify: bool = True,
    timeout_s: float = ASK_S,
) -> tuple[int, bytes]:
    """Sends a POST request if there is a body, otherwise a GET request. Returns the status and the body.

    The request uses no proxy. `verify`: False accepts any TLS certificate, for a server that proves who it is
    in another way.
    """
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port
    if parts.scheme == "https":
        context = ssl.create_default_context()
        if not verify:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)
    else:
        connection = http.client.HTTPConnection(host, port, timeout=timeout_s)  # type: ignore[assignment]
    sent = {"accept": "application/json", **(headers or {})}
    try:
        if body is None:
            connection.request("GET", parts.path, headers=sent)
        else:
            sent["content-type"] = "application/json"
            connection.request("POST", parts.path, json.dumps(body).encode(), sent)
        answer = connection.getresponse()
        return answer.status, answer.read(16 * 1024 * 1024)
    finally:
        connection.close()
