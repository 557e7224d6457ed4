"""Identifies a server, lists its models, and asks what one of its models can do.

The requests are cheap and have a short time limit. If a request fails in any way, its answer counts as
unknown.
"""

from __future__ import annotations

import asyncio
import difflib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import aiohttp

from toolwire.backends.openai.ollama import window_of
from toolwire.backends.openai.options import OpenAIOptions
from toolwire.backends.openai.profiles import GENERIC, PROFILES, ServerProfile, by_address, by_models, is_near
from toolwire.backends.openai.strategy import Facts

ASK_S = 2.0
BODY_LIMIT = 16 * 1024 * 1024
SHOWN_AT_ONCE = 4
NOT_CHAT = re.compile(
    r"embed|whisper|tts|dall-e|moderation|rerank|transcribe|(?:^|[-/])(?:sora|bge|e5)\b|-image\b|realtime"
    r"|davinci-002|babbage-002",
    re.IGNORECASE,
)
"""Ids of models that cannot chat. Used for servers whose list does not say what a model is for."""

Json = Any
Entry = Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model that a server offers for chat. `tools` and `context` are None if they are unknown."""

    id: str
    tools: bool | None = None
    context: int | None = None


class ProbeAnswer(NamedTuple):
    """A response: its text (or "" if the status is not 200) and its `Server` header."""

    text: str
    server: str


class ServerProbe:
    """Sends requests to one server. `base`: its address with `/v1`. `root`: its address without `/v1`."""

    def __init__(
        self, base_url: str, session: aiohttp.ClientSession, headers: Mapping[str, str] | None = None
    ) -> None:
        self.base = base_url.rstrip("/")
        url = urlsplit(self.base)
        self.root = f"{url.scheme}://{url.netloc}{url.path.removesuffix('/v1')}"
        self._session, self._headers = session, headers

    async def ask(self, url: str, body: Json = None) -> ProbeAnswer | None:
        """Sends a GET request, or a POST request if there is a body.

        Returns the response with any status, or None if there was no response or it was too large.
        """
        method = "GET" if body is None else "POST"
        asked = self._session.request(method, url, json=body, headers=self._headers, allow_redirects=False)
        try:
            async with asyncio.timeout(ASK_S), asked as response:
                raw = bytearray()
                async for block in response.content.iter_any():
                    raw += block
                    if len(raw) > BODY_LIMIT:
                        return None
                text = raw.decode("utf-8", "replace") if response.status == 200 else ""
                return ProbeAnswer(text, response.headers.get("Server", ""))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return None

    async def json(self, url: str, body: Json = None) -> Entry:
        return _object(await self.ask(url, body))


def _object(answer: ProbeAnswer | None) -> Entry:
    try:
        value = json.loads(answer.text) if answer else {}
    except (ValueError, RecursionError):
        return {}
    return _dict(value)


# --- identify ---


async def identify(probe: ServerProbe) -> ServerProfile | None:
    """Returns the kind of server, identified by its address or by requests to it.

    Sends requests only to a server on this machine or in its network (`is_near`). Returns None if such a
    server does not answer.
    """
    known = by_address(probe.base)
    if known is not None or not is_near(probe.base):
        return known or GENERIC
    answer = await probe.ask(probe.base + "/models")
    if answer is None:
        return None
    owners = [_text(entry.get("owned_by")) for entry in _entries(_object(answer), "data")]
    found = by_models(owners, answer.server)
    if found is not None:
        return found
    for profile in PROFILES.values():
        path, words = profile.probe
        answer = await probe.ask(probe.root + path) if path else None
        if answer is not None and words in answer.text:
            return profile
    return GENERIC


# --- what is wrong with a server ---

LISTS_ALL = ("ollama", "lmstudio", "vllm", "openrouter")
"""Kinds of servers that serve only the models that they list."""


async def trouble(options: OpenAIOptions, model: str) -> tuple[str, str] | None:
    """Returns why a server cannot serve a model, and how to fix it; None if nothing is wrong.

    Requests only the list of models, so that the server generates nothing. `model`: "" means any model.
    """
    base, timeout = options.base_url.rstrip("/"), aiohttp.ClientTimeout(total=2 * ASK_S)
    start = "start the server, or correct the model's base_url"
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=options.proxy_from_env) as session,
            session.get(base + "/models", headers=options.auth_headers, allow_redirects=False) as response,
        ):
            status, raw = response.status, await response.content.read(BODY_LIMIT)
    except TimeoutError:
        return f"{base} does not answer within {2 * ASK_S:g} s", start
    except aiohttp.ClientProxyConnectionError:
        return "the proxy in the environment cannot be reached", "correct HTTP_PROXY and HTTPS_PROXY"
    except aiohttp.ClientConnectorDNSError:
        return f"the host of {base} is not known", "correct the model's base_url"
    except aiohttp.ClientSSLError:
        return (
            f"no TLS connection to {base}",
            "correct base_url (http or https?), or the server's certificate",
        )
    except aiohttp.ClientConnectorError:
        return f"nothing listens at {base}", start
    except (aiohttp.ClientError, OSError, ValueError):
        return f"{base} does not speak HTTP", start
    if status in (401, 403):
        return f"{base} refuses the key (HTTP {status})", "set or correct the model's api_key"
    if status >= 500:
        return f"{base} has an error (HTTP {status})", "look at the log of that server"
    if status == 429:
        return f"{base} is busy or the quota is used up (HTTP 429)", "try again later"
    answer = _object(ProbeAnswer(raw.decode("utf-8", "replace"), ""))
    if status != 200 or "data" not in answer:
        what = "HTML" if raw.lstrip()[:1] == b"<" else f"HTTP {status}" if status != 200 else "something else"
        return f"{base} answers with {what}, not with models", "correct base_url; it usually ends in /v1"
    ids = [_text(entry.get("id")) for entry in _entries(answer, "data")]
    named = {model, f"{model}:latest"}
    if model and options.server.name in LISTS_ALL and not named.intersection(ids):
        near = difflib.get_close_matches(model, ids, 1, 0.5)
        return f"{base} has no model {model}", f"set model to {near[0]}" if near else "pull or load it there"
    return None


# --- one model ---


async def facts_of(probe: ServerProbe, profile: ServerProfile, model: str) -> Facts | None:
    """Returns what the server says about a model; None if it does not answer or has not loaded the model."""
    if profile.name == "ollama":
        answer = await probe.ask(probe.root + "/api/show", {"model": model})
        if answer is None:
            return None
        shown = _object(answer)
        window, loaded = window_of(shown, await probe.json(probe.root + "/api/ps"), model)
        tools, thinks = (_has(shown.get("capabilities"), word) for word in ("tools", "thinking"))
        return Facts(tools, False, window, loaded, bool(shown), thinks)
    if profile.name == "llamacpp":
        props = await probe.ask(probe.root + "/props")
        lark = None if props is None or not props.text else await _takes_lark(probe)
        if lark is None:
            return None
        window = _number(_dict(_object(props).get("default_generation_settings")).get("n_ctx"))
        return Facts(_template_tools(_object(props)), lark, window)
    if profile.name == "lmstudio":
        entry = await probe.json(f"{probe.root}/api/v0/models/{quote(model, safe='/')}")
        window = _number(entry.get("loaded_context_length")) or await _loaded_window(probe, model)
        return Facts(window=window) if window else None  # a model that is not loaded has no window yet
    return Facts()


async def _loaded_window(probe: ServerProbe, model: str) -> int | None:
    """Returns the context length of a model that LM Studio has loaded, or None if it is not loaded."""
    for entry in _entries(await probe.json(probe.root + "/api/v1/models"), "models"):
        for loaded in _entries(entry, "loaded_instances"):
            if model in (entry.get("key"), loaded.get("id")):
                return _number(_dict(loaded.get("config")).get("context_length"))
    return None


def _template_tools(props: Entry) -> bool | None:
    """Returns whether the model's chat template supports tools, or None if this is unknown.

    If the template does not support tools, llama.cpp drops them silently.
    """
    tools = _dict(props.get("chat_template_caps")).get("supports_tools")
    return tools if isinstance(tools, bool) else None


async def _takes_lark(probe: ServerProbe) -> bool | None:
    """Returns whether llama.cpp was built with llguidance; None if llama.cpp does not answer in time.

    Toolwire cannot try a Lark grammar, because llama.cpp without llguidance would abort. So Toolwire sends a
    JSON schema. If llama.cpp has llguidance, its answer shows the schema as a Lark grammar.
    """
    asked = {"prompt": "1", "n_predict": 0, "json_schema": {"type": "null"}}
    answer = await probe.ask(probe.root + "/completion", asked)
    if answer is None:
        return None
    grammar = _dict(_object(answer).get("generation_settings")).get("grammar")
    return isinstance(grammar, str) and grammar.startswith("%llguidance")


# --- all models ---


async def list_models(probe: ServerProbe, profile: ServerProfile) -> list[ListedModel]:
    """Returns the models that a server offers for chat, in the server's order; [] if it does not answer."""
    models: list[ListedModel] = []
    for listing in filter(None, (LISTINGS.get(profile.name), OPENAI_LISTING)):
        address = (probe.root if listing.root else probe.base) + listing.path
        if entries := _entries(await probe.json(address), listing.items):
            models = [model for entry in entries if (model := listing.read(entry)) is not None]
            break
    if profile.name == "ollama":
        models = await _shown(probe, models)
    if profile.name == "llamacpp" and len(models) == 1:
        tools = _template_tools(await probe.json(probe.root + "/props"))
        models = [ListedModel(models[0].id, tools, models[0].context)]
    return list({model.id: model for model in models}.values())


async def _shown(probe: ServerProbe, models: list[ListedModel]) -> list[ListedModel]:
    """Asks Ollama about each model of its list, and leaves out models that cannot chat.

    In older versions of Ollama, the list does not say what a model can do.
    """
    gate = asyncio.Semaphore(SHOWN_AT_ONCE)

    async def show(model: ListedModel) -> ListedModel | None:
        if model.tools is not None:
            return model
        async with gate:
            shown = await probe.json(probe.root + "/api/show", {"model": model.id})
        if _has(shown.get("capabilities"), "completion") is False:
            return None
        info = _dict(shown.get("model_info"))
        lengths = [_number(value) for key, value in info.items() if key.endswith(".context_length")]
        context = model.context or next(iter(lengths), None)
        return ListedModel(model.id, _has(shown.get("capabilities"), "tools"), context)

    return [model for model in await asyncio.gather(*map(show, models)) if model is not None]


def _openai(entry: Entry) -> ListedModel | None:
    """Reads an entry of `/v1/models`.

    vLLM and SGLang add the key `max_model_len`, and llama.cpp adds `meta.n_ctx`.
    """
    name = _text(entry.get("id"))
    if not name or NOT_CHAT.search(name):
        return None
    context = _number(entry.get("max_model_len")) or _number(_dict(entry.get("meta")).get("n_ctx"))
    return ListedModel(name, None, context)


def _ollama(entry: Entry) -> ListedModel | None:
    name = _text(entry.get("model")) or _text(entry.get("name"))
    can, context = entry.get("capabilities"), _number(_dict(entry.get("details")).get("context_length"))
    if not name or _has(can, "completion") is False or (can is None and NOT_CHAT.search(name)):
        return None
    return ListedModel(name, _has(can, "tools"), context)


def _lmstudio(entry: Entry) -> ListedModel | None:
    """Reads an entry of LM Studio's list, whose `type` is llm, vlm or embeddings.

    A model without the capability `tool_use` can also call tools, in LM Studio's own format. So `tools` is
    either True or None (unknown).
    """
    name = _text(entry.get("id"))
    if not name or entry.get("type") not in ("llm", "vlm"):
        return None
    context = _number(entry.get("loaded_context_length")) or _number(entry.get("max_context_length"))
    return ListedModel(name, _has(entry.get("capabilities"), "tool_use") or None, context)


def _openrouter(entry: Entry) -> ListedModel | None:
    name = _text(entry.get("id"))
    if not name or _has(_dict(entry.get("architecture")).get("output_modalities"), "text") is False:
        return None
    tools = _has(entry.get("supported_parameters"), "tools")
    return ListedModel(name, tools, _number(entry.get("context_length")))


def _litellm(entry: Entry) -> ListedModel | None:
    name, info = _text(entry.get("model_name")), _dict(entry.get("model_info"))
    if not name or info.get("mode") not in (None, "chat", "responses", "completion"):
        return None
    tools = info.get("supports_function_calling")
    tools = tools if isinstance(tools, bool) else None
    return ListedModel(name, tools, _number(info.get("max_input_tokens")))


@dataclass(frozen=True, slots=True)
class Listing:
    """Where a server lists its models, and the function that reads an entry of the list.

    `items`: the key of the list in the response. `root`: whether `path` is relative to the address without
    `/v1`.
    """

    path: str
    root: bool
    items: str
    read: Callable[[Entry], ListedModel | None]


OPENAI_LISTING = Listing("/models", False, "data", _openai)
LISTINGS: dict[str, Listing] = {
    "ollama": Listing("/api/tags", True, "models", _ollama),  # docs/api.md; api/types.go: ListModelResponse
    "lmstudio": Listing("/api/v0/models", True, "data", _lmstudio),  # developer/rest/endpoints
    "openrouter": Listing("/models", False, "data", _openrouter),  # openrouter.ai/docs/models
    "litellm": Listing("/model/info", False, "data", _litellm),  # litellm/proxy/proxy_server.py
}


def _entries(value: Json, key: str) -> list[Entry]:
    entries = value.get(key) if isinstance(value, dict) else None
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _dict(value: Json) -> Entry:
    return value if isinstance(value, dict) else {}


def _has(words: Json, word: str) -> bool | None:
    return word in words if isinstance(words, list) else None


def _text(value: Json) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Json) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
