"""Asking a server who it is, which models it has, and what it says of one of them. Cheap questions with a short time to answer, never on the way of
a turn that is already running well; whatever goes wrong means that nothing is known.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import aiohttp

from toolwire.backends.openai.profiles import GENERIC, PROFILES, Profile, by_address, by_models, is_near
from toolwire.backends.openai.strategy import Facts

ASK_S = 2.0
BODY_LIMIT = 16 * 1024 * 1024
SHOWN_AT_ONCE = 4
NOT_CHAT = re.compile(
    r"embed|whisper|tts|dall-e|moderation|rerank|transcribe|(?:^|[-/])(?:sora|bge|e5)\b|-image\b|realtime|davinci-002|babbage-002", re.IGNORECASE
)
"""Ids of models that do not chat, for servers whose lists do not say what a model is for."""

Json = Any
Entry = Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model that a server offers for chat. `tools` and `context` None: the server does not say."""

    id: str
    tools: bool | None = None
    context: int | None = None


class Said(NamedTuple):
    """An answer: its text, empty unless all is well, and its `Server` header."""

    text: str
    server: str


class Probe:
    """Asks one server. `base_url` ends with `/v1`, `root` is what stands before it."""

    def __init__(self, base_url: str, api_key: str, session: aiohttp.ClientSession, headers: Mapping[str, str] | None = None) -> None:
        self.base = base_url.rstrip("/")
        url = urlsplit(self.base)
        self.root = f"{url.scheme}://{url.netloc}{url.path.removesuffix('/v1')}"
        self._session = session
        self._headers = {**({"Authorization": f"Bearer {api_key}"} if api_key else {}), **(headers or {})}

    async def ask(self, url: str, body: Json = None) -> Said | None:
        """What is answered, whatever the status; None: nothing. A body makes it a POST."""
        method = "GET" if body is None else "POST"
        try:
            async with (
                asyncio.timeout(ASK_S),
                self._session.request(method, url, json=body, headers=self._headers, allow_redirects=False) as response,
            ):
                raw = bytearray()
                async for block in response.content.iter_any():
                    raw += block
                    if len(raw) > BODY_LIMIT:
                        return None
                text = raw.decode("utf-8", "replace") if response.status == 200 else ""
                return Said(text, response.headers.get("Server", ""))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return None

    async def json(self, url: str, body: Json = None) -> Entry:
        return _object(await self.ask(url, body))


def _object(said: Said | None) -> Entry:
    try:
        value = json.loads(said.text) if said else {}
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


# --- who ---------------------------------------------------------------------------------------------------------------------------------------


async def identify(probe: Probe) -> Profile | None:
    """The kind of server at an address that does not tell it. None: it did not answer, so it may be asked again. Servers far away are not asked."""
    known = by_address(probe.base)
    if known is not None or not is_near(probe.base):
        return known or GENERIC
    said = await probe.ask(probe.base + "/models")
    if said is None:
        return None
    found = by_models(_owners(said.text), said.server)
    if found is not None:
        return found
    for profile in PROFILES.values():
        if profile.probe is not None:
            path, words = profile.probe
            said = await probe.ask(probe.root + path)
            if said is not None and words in said.text:
                return profile
    return GENERIC


def _owners(text: str) -> list[str]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return [owner for entry in _entries(value, "data") if isinstance(owner := entry.get("owned_by"), str)]


# --- what it says of one model -----------------------------------------------------------------------------------------------------------------


async def facts_of(probe: Probe, profile: Profile, model: str) -> Facts | None:
    """What the server tells of this model before it is asked to do anything. None: it is not there, or still loads, so it may be asked again."""
    if profile.name == "ollama":
        shown = await probe.ask(probe.root + "/api/show", {"model": model})
        return None if shown is None else Facts(tools=_has(_object(shown).get("capabilities"), "tools"))
    if profile.name == "llamacpp":
        props = await probe.ask(probe.root + "/props")
        lark = None if props is None or not props.text else await _takes_lark(probe)
        return None if lark is None else Facts(tools=_template_tools(_object(props)), lark=lark)
    return Facts()


def _template_tools(props: Entry) -> bool | None:
    """llama.cpp leaves tools out where the model's template has no place for them."""
    caps = props.get("chat_template_caps")
    tools = caps.get("supports_tools") if isinstance(caps, dict) else None
    return tools if isinstance(tools, bool) else None


async def _takes_lark(probe: Probe) -> bool | None:
    """Whether llama.cpp was built with llguidance, which it must be told of by no grammar: another build would abort. With llguidance it turns any
    JSON schema into a Lark grammar, which stands in the settings that it answers with. None: it is too busy to say."""
    answer = await probe.ask(probe.root + "/completion", {"prompt": "1", "n_predict": 0, "json_schema": {"type": "null"}})
    if answer is None:
        return None
    settings = _object(answer).get("generation_settings")
    grammar = settings.get("grammar") if isinstance(settings, dict) else None
    return isinstance(grammar, str) and grammar.startswith("%llguidance")


# --- the models --------------------------------------------------------------------------------------------------------------------------------


async def list_models(probe: Probe, profile: Profile) -> list[ListedModel]:
    """The models that a server offers for chat, in its order; embedding models and the like are left out. Empty where it does not answer."""
    listing = LISTINGS.get(profile.name)
    entries: list[Entry] = []
    if listing is not None:
        entries = _entries(await probe.json((probe.root if listing.root else probe.base) + listing.path), listing.items)
        models = [model for entry in entries if (model := listing.read(entry)) is not None]
    if not entries:
        models = [model for entry in _entries(await probe.json(probe.base + "/models"), "data") if (model := _plain(entry)) is not None]
    if profile.name == "ollama":
        models = await _shown(probe, models)
    if profile.name == "llamacpp" and len(models) == 1:
        tools = _template_tools(await probe.json(probe.root + "/props"))
        models = [ListedModel(models[0].id, tools, models[0].context)]
    return list({model.id: model for model in models}.values())


async def _shown(probe: Probe, models: list[ListedModel]) -> list[ListedModel]:
    """Older Ollama lists do not say what a model can do; its page does."""
    gate = asyncio.Semaphore(SHOWN_AT_ONCE)

    async def show(model: ListedModel) -> ListedModel | None:
        if model.tools is not None:
            return model
        async with gate:
            shown = await probe.json(probe.root + "/api/show", {"model": model.id})
        if _has(shown.get("capabilities"), "completion") is False:
            return None
        info = shown.get("model_info")
        info = info if isinstance(info, dict) else {}
        context = next((_number(value) for key, value in info.items() if key.endswith(".context_length")), None)
        return ListedModel(model.id, _has(shown.get("capabilities"), "tools"), model.context or context)

    return [model for model in await asyncio.gather(*map(show, models)) if model is not None]


def _plain(entry: Entry) -> ListedModel | None:
    """An entry of `/v1/models`; vLLM and SGLang say `max_model_len`, llama.cpp `meta.n_ctx`."""
    name = _text(entry.get("id"))
    if not name or NOT_CHAT.search(name):
        return None
    meta = entry.get("meta")
    return ListedModel(name, None, _number(entry.get("max_model_len")) or _number(meta.get("n_ctx") if isinstance(meta, dict) else None))


def _ollama(entry: Entry) -> ListedModel | None:
    name = _text(entry.get("model")) or _text(entry.get("name"))
    capabilities, details = entry.get("capabilities"), entry.get("details")
    if not name or _has(capabilities, "completion") is False or (capabilities is None and NOT_CHAT.search(name)):
        return None
    return ListedModel(name, _has(capabilities, "tools"), _number(details.get("context_length")) if isinstance(details, dict) else None)


def _lmstudio(entry: Entry) -> ListedModel | None:
    """`type` is llm, vlm or embeddings. A model that was not trained for tools gets LM Studio's own format for them, so that nothing is known."""
    name = _text(entry.get("id"))
    if not name or entry.get("type") not in ("llm", "vlm"):
        return None
    context = _number(entry.get("loaded_context_length")) or _number(entry.get("max_context_length"))
    return ListedModel(name, _has(entry.get("capabilities"), "tool_use") or None, context)


def _openrouter(entry: Entry) -> ListedModel | None:
    name = _text(entry.get("id"))
    architecture = entry.get("architecture")
    writes = _has(architecture.get("output_modalities"), "text") if isinstance(architecture, dict) else None
    if not name or writes is False:
        return None
    return ListedModel(name, _has(entry.get("supported_parameters"), "tools"), _number(entry.get("context_length")))


def _litellm(entry: Entry) -> ListedModel | None:
    name, info = _text(entry.get("model_name")), entry.get("model_info")
    info = info if isinstance(info, dict) else {}
    if not name or info.get("mode") not in (None, "chat", "responses", "completion"):
        return None
    tools = info.get("supports_function_calling")
    return ListedModel(name, tools if isinstance(tools, bool) else None, _number(info.get("max_input_tokens")))


@dataclass(frozen=True, slots=True)
class Listing:
    """Where a server lists its models better than in `/v1/models`: the path from the root or the base, the key of the list, how an entry is read."""

    path: str
    root: bool
    items: str
    read: Callable[[Entry], ListedModel | None]


LISTINGS: dict[str, Listing] = {
    "ollama": Listing("/api/tags", True, "models", _ollama),  # docs/api.md; api/types.go: ListModelResponse
    "lmstudio": Listing("/api/v0/models", True, "data", _lmstudio),  # developer/rest/endpoints
    "openrouter": Listing("/models", False, "data", _openrouter),  # openrouter.ai/docs/models
    "litellm": Listing("/model/info", False, "data", _litellm),  # litellm/proxy/proxy_server.py
}


def _entries(value: Json, key: str) -> list[Entry]:
    entries = value.get(key) if isinstance(value, dict) else None
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _has(words: Json, word: str) -> bool | None:
    return word in words if isinstance(words, list) else None


def _text(value: Json) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Json) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
