"""The clients that people use, as data: what to paste into each, and its request format.

A test compares the guides with `docs/clients.md`. In their texts, `«base»` is the server's address with
`/v1`, `«root»` is the address without `/v1`, `«model»` is the model, and `«key»` is a placeholder, never a
key. Inside double quotes, these values are escaped for the language of the code. Text between `«?` and `?»`
appears only if the server needs a key.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from toolwire.core.turn import Api

OBSIDIAN = "app://obsidian.md"
STAINLESS = {
    f"x-stainless-{name}": "check"
    for name in ("arch", "lang", "os", "package-version", "retry-count", "runtime", "runtime-version")
}
ANTHROPIC = {"anthropic-version": "2023-06-01"}
TURNS: dict[Api, str] = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}
OPEN_KEY, KEY = "unused", "YOUR_KEY"


@dataclass(frozen=True, slots=True)
class ClientShape:
    """The form of a client's requests.

    `origin`: the origin of a client that runs in a browser and sends a preflight; "" for other clients.
    """

    api: Api = "chat"
    origin: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)
    sends_key: bool = True
    results: Literal["tool", "named", "user", "items", "chained", "blocks"] = "tool"
    """How the client sends a tool's result.

    `tool`: as a message with the role tool. `named`: the same message with the tool's name, and with the
    arguments of the call serialized again. `user`: as a message with the role user, in a request without
    tools. `items`: in the Responses API, with the whole history. `chained`: in the Responses API, with
    `previous_response_id`. `blocks`: as a `tool_result` block of the Messages API.
    """
    content: str | None = None
    """The content of an assistant's message that contains only calls."""

    @property
    def turns(self) -> str:
        return TURNS[self.api]


@dataclass(frozen=True, slots=True)
class GuideStep:
    """A step of a guide: a `value` for a field, or `code` to paste.

    `keys`: True if the step is only for servers that need a key, False if it is only for servers that need no
    key, None if it is for all servers.
    """

    label: str
    value: str = ""
    code: str = ""
    language: str = ""
    note: str = ""
    keys: bool | None = None

    def rendered(self, values: Mapping[str, str], needs_key: bool) -> dict[str, str]:
        out = {
            "label": self.label,
            "value": fill(self.value, "", values, needs_key),
            "code": fill(self.code, self.language, values, needs_key),
            "language": self.language,
            "note": fill(self.note, "", values, needs_key),
        }
        return {name: text for name, text in out.items() if text}


@dataclass(frozen=True, slots=True)
class ClientGuide:
    id: str
    name: str
    summary: str
    anchor: str
    """The anchor of the section about the client in `docs/clients.md`."""
    shape: ClientShape
    steps: tuple[GuideStep, ...]
    keyed: ClientShape | None = None
    """The form of the client's requests if the server needs a key; None if the form is the same."""

    def shaped(self, needs_key: bool) -> ClientShape:
        return self.keyed if needs_key and self.keyed is not None else self.shape

    def rendered(self, values: Mapping[str, str], needs_key: bool) -> dict[str, Any]:
        steps = [step for step in self.steps if step.keys in (None, needs_key)]
        return {
            "id": self.id,
            "name": self.name,
            "summary": self.summary,
            "docs": f"docs/clients.md#{self.anchor}",
            "api": self.shaped(needs_key).api,
            "steps": [step.rendered(values, needs_key) for step in steps],
        }


_OPTIONAL = re.compile(r"«\?(.*?)\?»", re.DOTALL)
_QUOTED = re.compile(r'"([^"\n]*«\w+»[^"\n]*)"')
_NAMED = re.compile(r"«(\w+)»")


def fill(text: str, language: str, values: Mapping[str, str], needs_key: bool) -> str:
    """Returns the text with this server's values, escaped for the `language` of the text."""
    shell = language == "sh"

    def quoted(found: re.Match[str]) -> str:
        written = json.dumps(_NAMED.sub(lambda name: values[name[1]], found[1]), ensure_ascii=False)
        return written.replace("'", "'\\''") if shell else written

    text = _OPTIONAL.sub(lambda found: found[1] if needs_key else "", text)
    text = _QUOTED.sub(quoted, text) if language else text
    return _NAMED.sub(lambda name: shlex.quote(values[name[1]]) if shell else values[name[1]], text)


def values_of(base_url: str, model: str, needs_key: bool) -> dict[str, str]:
    # One of the clients that use the root, ChatGPT MD, needs 127.0.0.1 instead of localhost.
    root = re.sub(r"//localhost(?=[:/]|$)", "//127.0.0.1", base_url.removesuffix("/v1"))
    return {"base": base_url, "root": root, "model": model, "key": KEY if needs_key else OPEN_KEY}


# --- the code, as docs/clients.md shows and runs it

CLAUDE_CODE = """\
export ANTHROPIC_BASE_URL="«root»" ANTHROPIC_API_KEY="«key»"
export ANTHROPIC_SMALL_FAST_MODEL="«model»"
claude --model «model»
"""
ANTHROPIC_PYTHON = """\
import anthropic

client = anthropic.Anthropic(base_url="«root»", api_key="«key»")
message = client.messages.create(
    model="«model»", max_tokens=1024, messages=[{"role": "user", "content": "Hello!"}]
)
print(message.content[0].text)
"""
ANTHROPIC_NODE = """\
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: "«root»", apiKey: "«key»" });
const message = await client.messages.create({
  model: "«model»", max_tokens: 1024, messages: [{ role: "user", content: "Hello!" }],
});
console.log(message.content[0].text);
"""
OPENCODE_JSON = """\
{
  "$schema": "https://opencode.ai/config.json",
  "provider": {
    "toolwire": {
      "npm": "@ai-sdk/openai-compatible",
      "name": "Toolwire",
      "options": { "baseURL": "«base»"«?, "apiKey": "{env:TOOLWIRE_API_KEY}"?» },
      "models": { "«model»": { "name": "Toolwire «model»" } }
    }
  }
}
"""

CODEX_TOML = """\
# ~/.codex/config.toml
model = "«model»"
model_provider = "toolwire"

[model_providers.toolwire]
name = "Toolwire"
base_url = "«base»"
wire_api = "responses"
«?env_key = "TOOLWIRE_API_KEY"
?»"""

AI_SDK_JS = """\
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, stepCountIs, tool } from "ai";

const toolwire = createOpenAICompatible({ name: "toolwire", baseURL: "«base»"«?, apiKey: "«key»"?» });
const get_weather = tool({
  description: "The weather in a city",
  inputSchema: jsonSchema({ type: "object", properties: { city: { type: "string" } }, required: ["city"] }),
  execute: async ({ city }) => `18 °C and sunny in ${city}`,
});
const { text } = await generateText({
  model: toolwire("«model»"),
  prompt: "What is the weather in Paris?",
  tools: { get_weather },
  stopWhen: stepCountIs(5),
});
console.log(text);
"""

LANGCHAIN_JS = """\
import { ChatOpenAI } from "@langchain/openai";

const model = new ChatOpenAI({ model: "«model»", apiKey: "«key»", configuration: { baseURL: "«base»" } });
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [{ type: "function", function: { \
name: "get_weather", description: "The weather in a city", parameters } }];
const answer = await model.bindTools(tools).invoke("What is the weather in Paris?");
console.log(answer.tool_calls[0].name, answer.tool_calls[0].args);
"""

OPENAI_PYTHON = """\
from openai import OpenAI

client = OpenAI(base_url="«base»", api_key="«key»")
city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
tools = [{"type": "function", "name": "get_weather", "parameters": city, "strict": False}]
answer = client.responses.create(model="«model»", input="What is the weather in Paris?", tools=tools)
call = answer.output[0]
print(call.name, call.arguments)
answer = client.responses.create(
    model="«model»",
    previous_response_id=answer.id,
    input=[{"type": "function_call_output", "call_id": call.call_id, "output": "18 °C and sunny"}],
)
print(answer.output_text)
"""

OPENAI_NODE = """\
import OpenAI from "openai";

const client = new OpenAI({ baseURL: "«base»", apiKey: "«key»" });
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const answer = await client.chat.completions.create({
  model: "«model»",
  messages: [{ role: "user", content: "What is the weather in Paris?" }],
  tools: [{ type: "function", function: { name: "get_weather", parameters } }],
});
console.log(answer.choices[0].message.tool_calls[0].function.arguments);
"""

CURL = """\
curl -s «base»/chat/completions -H 'content-type: application/json'\
«? -H "authorization: Bearer $TOOLWIRE_API_KEY"?» -d '{
  "model": "«model»",
  "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
  "tools": [{"type": "function", "function": {"name": "get_weather", "parameters":
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
}'
"""

_IN_ENVIRONMENT = GuideStep(
    "The key, in the environment", code='export TOOLWIRE_API_KEY="«key»"\n', language="bash", keys=True
)


def _one_command(id: str) -> GuideStep:
    note = "Use this command instead of the steps below. It does not change your client's own settings."
    return GuideStep(
        "In one command", code=f"toolwire launch {id} --model «model»\n", language="sh", note=note
    )


CLIENTS: tuple[ClientGuide, ...] = (
    ClientGuide(
        "obsidian-copilot",
        "Obsidian Copilot",
        "Version 4. In Copilot's settings, add a custom model.",
        "obsidian-copilot",
        ClientShape(
            origin=OBSIDIAN, headers=STAINLESS, body={"temperature": 0.1}, results="named", content=""
        ),
        (
            GuideStep("Model name", value="«model»"),
            GuideStep("Provider", value="3rd party (openai format)"),
            GuideStep("Base URL", value="«base»", note="With /v1."),
            GuideStep(
                "API key", value="«key»", note="Any text works: this server requires no key.", keys=False
            ),
            GuideStep(
                "API key", note="A key from server.keys, or one that toolwire keys add created.", keys=True
            ),
            GuideStep(
                "Enable CORS",
                value="off",
                note="If this option is on, answers do not stream. Toolwire accepts Obsidian's origin.",
            ),
        ),
    ),
    ClientGuide(
        "chatgpt-md",
        "ChatGPT MD",
        "Version 3. In the plugin's settings:",
        "chatgpt-md",
        ClientShape(results="user", content="", body={"tool_choice": "auto"}, sends_key=False),
        (
            GuideStep(
                "LM Studio URL",
                value="«root»",
                note="Without /v1, and with 127.0.0.1 instead of localhost. "
                "Use the LM Studio provider: it lists every model and uses chat completions.",
                keys=False,
            ),
            GuideStep(
                "Model, in the note's frontmatter",
                code="model: lmstudio@«model»\n",
                language="yaml",
                keys=False,
            ),
            GuideStep(
                "OpenAI URL",
                value="«root»",
                note="Without /v1. The LM Studio provider sends no key, so use the OpenAI provider.",
                keys=True,
            ),
            GuideStep(
                "OpenAI API key",
                note="A key from server.keys, or one that toolwire keys add created.",
                keys=True,
            ),
            GuideStep(
                "Model, in the note's frontmatter",
                code="model: openai@«model»\n",
                language="yaml",
                note="This provider lists only IDs that look like OpenAI's, such as gpt-4o; "
                "you can still type other IDs.",
                keys=True,
            ),
            GuideStep("Tool calling", value="on", note="It is off by default."),
            GuideStep(
                "Tool-enabled models",
                value="«model»",
                note="Add this line: the plugin offers tools only to the models on that list.",
            ),
        ),
        keyed=ClientShape("responses", results="user", content=""),
    ),
    ClientGuide(
        "opencode",
        "OpenCode",
        "opencode.json in your project, or in ~/.config/opencode/.",
        "opencode",
        ClientShape(body={"tool_choice": "auto"}),
        (
            _one_command("opencode"),
            GuideStep("opencode.json", code=OPENCODE_JSON, language="json"),
            _IN_ENVIRONMENT,
            GuideStep("Then run", code='opencode run --model toolwire/«model» "hello"\n', language="sh"),
        ),
    ),
    ClientGuide(
        "codex",
        "Codex",
        "The Codex CLI uses only the Responses API. "
        "Through Toolwire it also works with servers that offer only chat completions.",
        "codex-cli",
        ClientShape(
            "responses", results="items", body={"store": False, "parallel_tool_calls": False, "include": []}
        ),
        (
            _one_command("codex"),
            GuideStep(
                "~/.codex/config.toml",
                code=CODEX_TOML,
                language="toml",
                note="Toolwire drops Codex's hosted tools (web_search). The Wire page lists what it dropped.",
            ),
            _IN_ENVIRONMENT,
            GuideStep("Then run", code='codex exec "hello"\n', language="sh"),
        ),
    ),
    ClientGuide(
        "claude-code",
        "Claude Code",
        "Anthropic's coding agent, with any model. It uses the Messages API.",
        "claude-code",
        ClientShape("messages", headers=ANTHROPIC, body={"max_tokens": 1024}, results="blocks"),
        (
            _one_command("claude"),
            GuideStep(
                "In a shell",
                code=CLAUDE_CODE,
                language="sh",
                note="If the context of the model is small, also set CLAUDE_CODE_MAX_CONTEXT_TOKENS=32000.",
            ),
            GuideStep(
                "Claude Code's own model names",
                value="claude-opus-…, claude-sonnet-…, claude-haiku-…",
                note="This server's first model answers to these names. To choose another, set [aliases].",
            ),
        ),
    ),
    ClientGuide(
        "anthropic-python",
        "Anthropic SDK (Python)",
        "pip install anthropic",
        "anthropic-sdk-python",
        ClientShape(
            "messages", headers={**ANTHROPIC, **STAINLESS}, body={"max_tokens": 1024}, results="blocks"
        ),
        (
            GuideStep("A program", code=ANTHROPIC_PYTHON, language="python"),
            GuideStep("Programs that read the environment", value="ANTHROPIC_BASE_URL=«root»"),
        ),
    ),
    ClientGuide(
        "anthropic-node",
        "Anthropic SDK (Node)",
        "npm install @anthropic-ai/sdk",
        "anthropic-sdk-javascript",
        ClientShape(
            "messages", headers={**ANTHROPIC, **STAINLESS}, body={"max_tokens": 1024}, results="blocks"
        ),
        (GuideStep("A program", code=ANTHROPIC_NODE, language="js"),),
    ),
    ClientGuide(
        "ai-sdk",
        "AI SDK",
        "npm install ai @ai-sdk/openai-compatible",
        "ai-sdk",
        ClientShape(body={"tool_choice": "auto"}),
        (
            GuideStep(
                "A program",
                code=AI_SDK_JS,
                language="js",
                note="createOpenAI from @ai-sdk/openai works too; it uses the Responses API.",
            ),
        ),
    ),
    ClientGuide(
        "langchain",
        "LangChain",
        "npm install @langchain/openai",
        "langchain",
        ClientShape(headers=STAINLESS, results="named", content=""),
        (
            GuideStep("A program", code=LANGCHAIN_JS, language="js"),
            GuideStep(
                "In Python",
                value='ChatOpenAI(model="«model»", base_url="«base»", api_key="«key»")',
                note="Install langchain-openai. Chat completions and the Responses API work.",
            ),
        ),
    ),
    ClientGuide(
        "openai-python",
        "OpenAI SDK (Python)",
        "pip install openai. The sample uses the Responses API; chat completions work too.",
        "openai-sdk-python",
        ClientShape("responses", headers=STAINLESS, results="chained"),
        (
            GuideStep("A program", code=OPENAI_PYTHON, language="python"),
            GuideStep("Programs that read the environment", value="OPENAI_BASE_URL=«base»"),
        ),
    ),
    ClientGuide(
        "openai-node",
        "OpenAI SDK (Node)",
        "npm install openai",
        "openai-sdk-javascript",
        ClientShape(headers=STAINLESS),
        (GuideStep("A program", code=OPENAI_NODE, language="js"),),
    ),
    ClientGuide(
        "curl",
        "curl",
        "The plain request, from a shell.",
        "curl",
        ClientShape(headers={"user-agent": "curl"}),
        (
            GuideStep("A request with a tool", code=CURL, language="sh"),
            _IN_ENVIRONMENT,
            GuideStep(
                "List the models",
                code='curl -s «base»/models«? -H "authorization: Bearer $TOOLWIRE_API_KEY"?»\n',
                language="sh",
            ),
        ),
    ),
)

BY_ID = {client.id: client for client in CLIENTS}
