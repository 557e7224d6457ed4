"""Who is logged in, and what to tell the person when nobody is, or when the provider does not accept the login."""

from __future__ import annotations

from toolwire.backends.codex.options import CodexOptions
from toolwire.backends.codex.worker import Worker
from toolwire.errors import ToolwireError
from toolwire.events import Failure

HOW = "Log in with: codex login"


async def require_login(worker: Worker) -> None:
    """Codex would ask the provider without a login, too: better to say at once what is missing."""
    if worker.logged_in:
        return
    account = await worker.account()
    worker.logged_in = account.account is not None or not account.requires_openai_auth
    if not worker.logged_in:
        raise ToolwireError("backend_auth", await _with_url("Codex is not logged in.", worker))


async def explained(failure: Failure, worker: Worker, options: CodexOptions) -> Failure:
    """The failure, with what the person can do about it."""
    if failure.kind != "backend_auth":
        return failure
    if options.provider is not None:
        key = options.provider.get("env_key")
        return Failure(failure.kind, failure.message + (f" Check the key in the environment variable {key}." if key else ""))
    worker.logged_in = False
    return Failure(failure.kind, await _with_url(failure.message, worker))


async def _with_url(words: str, worker: Worker) -> str:
    url = await worker.login_url()
    return f"{words} {HOW}" + (f", or open {url}" if url else "")
