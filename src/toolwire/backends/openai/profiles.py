"""What Toolwire knows about OpenAI-compatible servers, as data.

`render.py`, `strategy.py` and `discover.py` read this table; hardly any other code depends on a server's
name. The facts come from each server's own documentation or source code, as of August 2026; a comment names
the source. Where a row says nothing, the server is expected to work like OpenAI's API.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

Choice = Literal["none", "required", "named", "allowed"]
SchemaField = Literal["response_format", "json_schema", "structured_outputs", "guided_json"]
Grammar = Literal["none", "lark", "structural_tag"]
MaxTokens = Literal["max_tokens", "max_completion_tokens"]

USUAL_CHOICES: frozenset[Choice] = frozenset({"none", "required", "named"})

PASSABLE = frozenset(
    "metadata prediction prompt_cache_key prompt_cache_options prompt_cache_retention "
    "safety_identifier service_tier store".split()
)
"""Fields of OpenAI's API that Toolwire forwards unchanged, and that do not affect Toolwire itself."""

_VENDOR_FIELDS = (
    # sampling: vLLM protocol.py, SGLang protocol.py, llama.cpp server README, OpenRouter's parameters
    "top_k min_p top_a typical_p top_n_sigma repetition_penalty repeat_penalty repeat_last_n length_penalty",
    "dry_multiplier dry_base dry_allowed_length dry_penalty_last_n dry_sequence_breakers",
    "xtc_probability xtc_threshold mirostat mirostat_tau mirostat_eta dynatemp_range dynatemp_exponent",
    "samplers min_tokens stop_token_ids allowed_token_ids bad_words ignore_eos include_stop_str_in_output",
    "no_stop_trim skip_special_tokens spaces_between_special_tokens truncate_prompt_tokens min_keep",
    # prompt and cache
    "chat_template_kwargs mm_processor_kwargs documents add_special_tokens cache_prompt cache_salt",
    # reasoning: vLLM, SGLang, llama.cpp, DeepSeek, Qwen, Groq, OpenRouter
    "enable_thinking thinking thinking_budget include_reasoning reasoning_format separate_reasoning",
    "stream_reasoning",
    # format of the answer
    "guided_json guided_regex guided_choice guided_grammar structured_outputs regex ebnf json_schema",
    # Mistral
    "safe_prompt random_seed prompt_mode",
)
VENDOR = frozenset(" ".join(_VENDOR_FIELDS).split())
"""Fields of other servers that clients may send, because they affect only the answer to this request.

Excluded are fields that choose another model, address or account (`models`, `api_base`, `api_key`,
`provider`, `extra_headers`), load code (`logits_processors`, `chat_template`), can stop the server
(`grammar`, which in llama.cpp can be a Lark grammar) or multiply the work (`best_of`). An operator can allow
them with `pass_fields`.
"""

OLLAMA_OPTIONS = frozenset(
    "top_k min_p typical_p repeat_penalty repeat_last_n mirostat mirostat_tau mirostat_eta".split()
)
"""The fields of `VENDOR` that Ollama's own API has as options (api/types.go: Options, Runner)."""


@dataclass(frozen=True, slots=True)
class ServerProfile:
    """One kind of server.

    - `base_url`: the default address.
    - Toolwire identifies the server by its host name (`hosts`), by the port in `base_url` (if `own_port` is
      set), by `owned_by` in its list of models, by its header `Server` (`server`), or by words in the
      response at a path (`probe`: the path and the words).
    - `choices`: the values of `tool_choice` that the server supports besides `auto`. `allowed` means a list
      of allowed tools. `firm`: whether `required` always results in a call.
    - `schema`: the request field that constrains a whole answer to a JSON schema. `strict_schema`: whether
      this schema is sent with `strict`.
    - `grammar`: how the server can constrain text that contains calls.
    - `json_object`: whether the server supports this response format. `text_parts`: whether a message may be
      a list of texts. `prefill`: whether the server continues the assistant's last message.
    - `ignores`: request fields that the server does not read. `takes`: the fields of `PASSABLE` that it
      reads. `vendor`: fields that OpenAI does not have and that the server may read.
    - `streams_logprobs`: whether the server can stream log probabilities even with tools.
    - `drops_prompt`: whether the server can silently drop a part of a prompt that is too long.
    - `deviations`: how the server differs from OpenAI, for the documentation. Toolwire handles all of them.
    """

    name: str
    title: str
    base_url: str
    hosts: tuple[str, ...] = ()
    own_port: bool = False
    owned_by: tuple[str, ...] = ()
    server: str = ""
    probe: tuple[str, str] = ("", "")
    tools: bool = True
    choices: frozenset[Choice] = USUAL_CHOICES
    firm: bool = True
    parallel: bool = True
    strict: bool = False
    schema: SchemaField = "response_format"
    strict_schema: bool = True
    grammar: Grammar = "none"
    json_object: bool = True
    images: bool = True
    image_urls: bool = True
    text_parts: bool = True
    prefill: bool = False
    max_tokens: MaxTokens = "max_tokens"
    ignores: frozenset[str] = field(default_factory=frozenset)
    takes: frozenset[str] = frozenset()
    vendor: frozenset[str] = VENDOR
    streams_logprobs: bool = True
    drops_prompt: bool = False
    deviations: tuple[str, ...] = ()


_ROWS = (
    ServerProfile(
        # platform.openai.com/docs/api-reference/chat; strict schemas are a subset, so a call's schema is
        # sent without `strict`
        "openai",
        "OpenAI",
        "https://api.openai.com/v1",
        hosts=("api.openai.com",),
        choices=USUAL_CHOICES | {"allowed"},
        strict=True,
        strict_schema=False,
        max_tokens="max_completion_tokens",
        takes=PASSABLE,
        vendor=frozenset(),  # OpenAI refuses them: "Unrecognized request argument supplied"
    ),
    ServerProfile(
        # openrouter.ai/docs/requests, /docs/api-reference: comments while it waits, errors inside the
        # stream, endpoints by `supported_parameters`; endpoints advertise `max_tokens`, not the newer name
        "openrouter",
        "OpenRouter",
        "https://openrouter.ai/api/v1",
        hosts=("openrouter.ai",),
        strict=True,
        strict_schema=False,
        takes=frozenset({"prediction"}),
        deviations=(
            "the stream contains comments between the chunks",
            "a stream that started normally can contain a provider's error",
            'some models support tools but not `tool_choice: "required"`',
        ),
    ),
    ServerProfile(
        # ollama docs/api/openai-compatibility.mdx ("[ ] tool_choice"), openai/openai.go (request struct,
        # decodeImageURL, FromChatRequest: a list of parts becomes one message each and loses its
        # tool_call_id), server/routes.go ("Ollama is running"); ollama/ollama issues 15457 (index 0), 7881
        # (no index)
        "ollama",
        "Ollama",
        "http://127.0.0.1:11434/v1",
        own_port=True,
        probe=("/", "Ollama is running"),
        choices=frozenset(),
        image_urls=False,
        text_parts=False,
        ignores=frozenset({"logit_bias", "user", "verbosity"}),
        vendor=frozenset(),  # only in its own API: OLLAMA_OPTIONS
        drops_prompt=True,
        deviations=(
            "the OpenAI endpoint ignores the context length, and silently drops the oldest messages of a "
            "prompt that is too long",
            "the server ignores `tool_choice`",
            "each call arrives in one piece; several calls all have index 0 (Ollama before 0.20) or no index "
            "(before 0.4.7)",
            "in older versions, the finish reason of a response with calls is `stop`",
            "the server refuses images by URL",
            "the server splits a message of several texts into several messages",
        ),
    ),
    ServerProfile(
        # lmstudio.ai docs api-changelog (0.3.15: tool_choice strings only; 0.3.16: capabilities),
        # developer/openai-compat/chat-completions (fields), lms issue 60 (no logprobs),
        # lmstudio-bug-tracker issues 670 ("Supported string values: none, auto, required"), 830 (empty id),
        # 649 (empty name in each piece);
        # "'response_format.type' must be 'json_schema' or 'text'"
        "lmstudio",
        "LM Studio",
        "http://127.0.0.1:1234/v1",
        own_port=True,
        probe=("/api/v0/models", '"compatibility_type"'),
        choices=frozenset({"none", "required"}),
        firm=False,
        json_object=False,
        ignores=frozenset({"logprobs", "user", "verbosity"}),
        drops_prompt=True,
        deviations=(
            "depending on a setting in the app, a prompt that is too long can silently lose its middle or "
            "its start",
            "the server refuses a named `tool_choice`; `required` works only for GGUF models",
            "the server refuses the response format `json_object`",
            "calls have empty ids",
            "the later chunks of a call contain an empty name (LM Studio 0.3.15)",
            "a response without calls can have the finish reason `tool_calls`",
        ),
    ),
    ServerProfile(
        # docs/features/tool_calling.md (choices, strict), docs/features/structured_outputs.md,
        # entrypoints/openai/engine/protocol.py (owned_by; response_format takes `structural_tag` with an
        # xgrammar `format`), chat_completion/serving.py ("stop" for named tool calls)
        "vllm",
        "vLLM",
        "http://127.0.0.1:8000/v1",
        owned_by=("vllm",),
        strict=True,
        grammar="structural_tag",
        ignores=frozenset({"verbosity"}),
        deviations=(
            "without `--enable-auto-tool-choice` and `--tool-call-parser`, the server rejects tools",
            "if `tool_choice` names a tool, the finish reason is `stop`",
        ),
    ),
    ServerProfile(
        # python/sglang/srt/entrypoints/openai/protocol.py (owned_by; StructuralTagResponseFormat; strict),
        # docs/advanced_features/structured_outputs
        "sglang",
        "SGLang",
        "http://127.0.0.1:30000/v1",
        owned_by=("sglang",),
        grammar="structural_tag",
        ignores=frozenset({"verbosity"}),
        deviations=(
            'without `--tool-call-parser`, calls that the model makes with `tool_choice: "auto"` stay in the '
            "text",
            "the name and the arguments of a call are in separate chunks",
        ),
    ),
    ServerProfile(
        # tools/server/server-common.cpp (tools need --jinja; a tool_choice that is no string counts as
        # auto), server-context.cpp (owned_by, /props), server-http.cpp (Server header), its README
        # (--prefill-assistant, on by default), common/chat-auto-parser-generator.cpp (`required`: text,
        # then calls). common/sampling.cpp: a Lark grammar ABORTS a server that was built without
        # llguidance, so `discover` asks first, and `grammar` is used only after a yes
        "llamacpp",
        "llama.cpp",
        "http://127.0.0.1:8080/v1",
        owned_by=("llamacpp",),
        server="llama.cpp",
        choices=frozenset({"none", "required"}),
        firm=False,
        grammar="lark",
        prefill=True,
        ignores=frozenset({"user", "verbosity"}),
        streams_logprobs=False,
        drops_prompt=True,
        deviations=(
            "with `--context-shift`, a prompt that is too long silently loses its start",
            "if the model's chat template does not support tools, llama.cpp silently drops the tools",
            '`tool_choice: "required"` allows text before the call',
            "a named `tool_choice` has the same effect as `auto`",
            "if llama.cpp's parser does not recognise what the model wrote, the response is HTTP 500",
            "the server refuses `logprobs` in a stream with tools",
        ),
    ),
    ServerProfile(
        # litellm/proxy/health_endpoints ("I'm alive!"), litellm/utils.py (UnsupportedParamsError), its
        # issues 33678 and 21331 (index 0)
        "litellm",
        "LiteLLM",
        "http://127.0.0.1:4000/v1",
        probe=("/health/liveliness", "I'm alive!"),
        strict_schema=False,
        deviations=(
            "every call has index 0",
            "with models of `ollama_chat`, a call's arguments are an object instead of a string",
            "with models of `ollama_chat`, the finish reason of a response with calls is `stop`",
            "further differences depend on the server behind LiteLLM",
        ),
    ),
    ServerProfile(
        "generic",
        "another server",
        "http://127.0.0.1:8000/v1",
        strict=True,
        deviations=("responses with the differences that this page lists",),
    ),
)

PROFILES: dict[str, ServerProfile] = {row.name: row for row in _ROWS}
GENERIC = PROFILES["generic"]


def by_address(base_url: str) -> ServerProfile | None:
    """Returns the kind of server that the address identifies, or None if it identifies no kind."""
    url = urlsplit(base_url)
    host = (url.hostname or "").lower()
    for profile in _ROWS:
        is_host = any(host == known or host.endswith("." + known) for known in profile.hosts)
        if is_host or (profile.own_port and url.port == urlsplit(profile.base_url).port):
            return profile
    return None


def by_models(owned_by: Iterable[str], server: str) -> ServerProfile | None:
    """Returns the kind of server by its `Server` header or the `owned_by` of its models, or None."""
    owners = set(owned_by)
    for profile in _ROWS:
        is_named = bool(profile.server) and server.lower().startswith(profile.server)
        if is_named or owners.intersection(profile.owned_by):
            return profile
    return None


def is_near(base_url: str) -> bool:
    """Returns True if the server is on this machine or in its network.

    Toolwire identifies such a server by requests to it. Any other server is identified only by its address.
    """
    host = (urlsplit(base_url).hostname or "").lower()
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "." not in host or host.endswith((".local", ".lan", ".internal", ".home.arpa", ".localhost"))
    return address.is_private or address.is_loopback or address.is_link_local
