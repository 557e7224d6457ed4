"""All formats of tool calls, as data.

To add a dialect, add an entry to one of the tables here, its writer to `RENDER` in `render.py`, and its model
family to `FAMILIES` in `dialects/__init__.py`. A new shape also needs a class in `shapes.py` and a grammar in
`GRAMMARS` in `scanner.py`. To add a marker to an existing dialect, add one more `Opener` to its entry.
"""

from __future__ import annotations

import re
from string import ascii_letters, digits
from typing import Any

from toolwire.emulate.dialects.shapes import (
    NONCE,
    TOOL,
    Dialect,
    ElementBlock,
    GemmaBlock,
    HeadedBlock,
    JsonBlock,
    Opener,
    PythonBlock,
    TagBlock,
)


def _dialect(name: str, note: str, *openers: Opener) -> Dialect:
    return Dialect(name, openers, note=note)


def _json(marker: str, *closers: str, **more: Any) -> Opener:
    return Opener(marker, JsonBlock(closers=closers, **more))


# --- JSON objects with the name in them: `{"name": …, "arguments": …}` ---

_FENCED = JsonBlock(closers=("```",), exact=True)
_FENCE_WORDS = ("json", "tool_call", "tool_calls", "tool", "")
_HERMES = _json("<tool_call>", "</tool_call>")
_LLAMA_CLOSERS = ("<|eom_id|>", "<|eot_id|>")
_BARE = Opener(
    "{",
    JsonBlock(closers=_LLAMA_CLOSERS, exact=True, separators=";", separated=True, open_ended=True),
    whole=True,
    line_start=True,
)
_SENTINEL = _json(f"<tool_call:{NONCE}>", f"</tool_call:{NONCE}>", "</tool_call>")

ENVELOPED = (
    Dialect(
        "sentinel",
        (_SENTINEL,),
        False,
        "every model; described in Toolwire's prompt, with a new token for every request",
    ),
    _dialect("hermes", "Hermes 2/3, Qwen2.5, Qwen3, Granite 4 and many fine-tunes", _HERMES),
    _dialect("bare", "small models that leave the markers out", _BARE),
    _dialect(
        "fenced",
        "models that write a call in a code fence",
        *(Opener(f"```{word}\n", _FENCED, line_start=True) for word in _FENCE_WORDS),
    ),
    _dialect(
        "llama_json",
        "Llama 3.1, 3.2, 3.3",
        _json("<|python_tag|>", *_LLAMA_CLOSERS, separators=",;", open_ended=True),
        _BARE,
    ),
    _dialect(
        "cohere",
        "Command R7B, Command A and later",
        _json("<|START_ACTION|>", "<|END_ACTION|>", name_keys=frozenset({"tool_name", "name"})),
    ),
    _dialect(
        "granite",
        "Granite 3 (Granite 4 uses hermes)",
        _json("<|tool_call|>", "<|end_of_text|>", open_ended=True),
        _HERMES,
    ),
)


# --- the name in a header of markers, then the arguments as JSON ---
#
# Dialects with the same markers are read in the same manner, whichever of them is enabled: the text after the
# marker decides how the block is read. These dialects differ only in how `render.py` writes calls.

_NAME_START = ascii_letters + digits + "_"
_WORDS = re.compile(r'[^<>{}\[\]"]+')

_MISTRAL_CLOSE = "</s>"
_MISTRAL_COMPACT = HeadedBlock(
    headers=(re.compile(r"(?P<name>[\w./-]+) *(?:\[CALL_ID\] *(?P<id>[\w-]*) *)?(?:\[ARGS\] *)?"),),
    words=re.compile(r"[\w./ -]+"),
    marks=("[CALL_ID]", "[ARGS]"),
    call_close=_MISTRAL_CLOSE,
    open_ended=True,
    first=_NAME_START,
)
_MISTRAL = (_json("[TOOL_CALLS]", _MISTRAL_CLOSE, open_ended=True), Opener("[TOOL_CALLS]", _MISTRAL_COMPACT))

_DEEPSEEK_BLOCK = HeadedBlock(
    headers=(
        re.compile(r"\s*\w*\s*<｜tool▁sep｜>\s*(?P<name>[^\s<`]+)\s*(?:```\w*\s*)?"),
        re.compile(r"\s*(?P<name>[^\s<`]+)\s*<｜tool▁sep｜>\s*(?:```\w*\s*)?"),
    ),
    words=_WORDS,
    marks=("<｜tool▁sep｜>",),
    call_close="<｜tool▁call▁end｜>",
    wrapper_closers=("<｜tool▁calls▁end｜>", "<｜end▁of▁sentence｜>"),
    call_openers=("<｜tool▁call▁begin｜>",),
    first="<" + _NAME_START,
)
_DEEPSEEK = tuple(
    Opener(marker, _DEEPSEEK_BLOCK) for marker in ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>")
)

_KIMI_ARGUMENTS = r"\s*<\|tool_call_argument_begin\|>\s*"
_KIMI = HeadedBlock(
    headers=(
        re.compile(r"\s*(?P<id>functions[._](?P<name>[^\s<]+)[:_][0-9]+)" + _KIMI_ARGUMENTS),
        re.compile(r"\s*(?P<id>(?P<name>[^\s<]+):[0-9]+)" + _KIMI_ARGUMENTS),
        re.compile(r"\s*(?P<name>[^\s<]+)" + _KIMI_ARGUMENTS),
        re.compile(r"\s*functions[._](?P<name>[^\s<]+)" + _KIMI_ARGUMENTS),
    ),
    words=_WORDS,
    marks=("<|tool_call_argument_begin|>",),
    call_close="<|tool_call_end|>",
    wrapper_closers=("<|tool_calls_section_end|>", "<|tool_call_section_end|>"),
    call_openers=("<|tool_call_begin|>",),
    first="<" + _NAME_START,
)

_RECIPIENT = r"(?:.*[\s>])?to="
_HARMONY_REST = r"(?P<name>(?!assistant\b)[^\s<]+)(?:[\s<].*)?<\|message\|>\s*"
_HARMONY = HeadedBlock(
    headers=(
        re.compile(_RECIPIENT + r"functions\." + _HARMONY_REST, re.DOTALL),
        re.compile(_RECIPIENT + _HARMONY_REST, re.DOTALL),
    ),
    words=re.compile(r'[^<>{}\[\]"\n]+'),
    marks=("<|channel|>", "<|constrain|>", "<|message|>"),
    call_close="<|call|>",
    wrapper_closers=("<|end|>", "<|return|>"),
    first=_NAME_START,
)

_KIMI_MARKERS = ("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>", "<|tool_call_begin|>")
_COMPACT = "Mistral Small 3, Medium 3, Ministral 3, Devstral, Magistral (the name, then the arguments)"

HEADED = (
    _dialect("mistral", "Mistral 7B v0.3, Mixtral, Nemo, Small 2, Large 2 (an array of calls)", *_MISTRAL),
    _dialect("mistral_compact", _COMPACT, *_MISTRAL),
    _dialect("deepseek_v3", "DeepSeek V3, R1", *_DEEPSEEK),
    _dialect("deepseek_v31", "DeepSeek V3.1", *_DEEPSEEK),
    _dialect(
        "kimi",
        "Kimi K2; the call keeps the id that the model writes",
        *(Opener(marker, _KIMI) for marker in _KIMI_MARKERS),
    ),
    _dialect(
        "harmony",
        "gpt-oss",
        Opener("<|channel|>", _HARMONY),
        Opener("<|start|>", _HARMONY),
        Opener("to=functions.", _HARMONY, whole=True, answer_start=True),
    ),
)


# --- tags, with values as text between them ---

_NAME_ATTRIBUTE = r"""\s+name\s*=\s*["']([^"'<>]+)["']\s*>"""
_LOOSE_NAME = r"""\s+name\s*=\s*["']?([^"'<>]+?)["']?\s*>"""

_QWEN = TagBlock(
    call_tag=re.compile(r"<function=\s*[\"']?([^\"'<>\s]+)[\"']?\s*>"),
    call_close="</function>",
    parameter_tag=re.compile(r"<parameter=\s*[\"']?([^\"'<>\n]+?)[\"']?\s*>"),
    parameter_close="</parameter>",
    wrapper_closers=("</tool_call>",),
    trim_newline=True,
    parameter_start="<parameter=",
)
_ANTHROPIC = TagBlock(
    call_tag=re.compile(r"<invoke" + _NAME_ATTRIBUTE),
    call_close="</invoke>",
    parameter_tag=re.compile(r"<parameter" + _NAME_ATTRIBUTE),
    parameter_close="</parameter>",
    wrapper_closers=("</function_calls>",),
    parameter_start="<parameter ",
)
_USE_TOOL = TagBlock(
    call_tag=re.compile(r"""<use_tool(?:\s+name\s*=\s*["']([^"'<>]+)["'])?\s*>"""),
    call_close="</use_tool>",
    parameter_tag=re.compile(r"<([A-Za-z_][\w.-]*)\s*>"),
    parameter_close="</{key}>",
    name_child="name",
    entities=True,
    not_inside=("<{key}>",),
)
_GLM = TagBlock(
    call_tag=re.compile(r"(?!)"),
    call_close="</tool_call>",
    parameter_tag=re.compile(r"<arg_key>"),
    parameter_close="</arg_value>",
    bare_name=True,
    key_tags=("</arg_key>", "<arg_value>"),
    parameter_start="<arg_key>",
    not_inside=("<arg_value>",),
    first=_NAME_START,
)
_MINIMAX = TagBlock(
    call_tag=re.compile(r"<invoke" + _LOOSE_NAME),
    call_close="</invoke>",
    parameter_tag=re.compile(r"<parameter" + _LOOSE_NAME),
    parameter_close="</parameter>",
    wrapper_closers=("</minimax:tool_call>",),
    parameter_start="<parameter ",
)
_DSML = TagBlock(
    call_tag=re.compile(r"<｜DSML｜invoke\s+name\s*=\s*\"([^\"<>]+)\"\s*/?>"),
    call_close="</｜DSML｜invoke>",
    parameter_tag=re.compile(
        r"<｜DSML｜parameter\s+name\s*=\s*\"([^\"<>]+)\"(?:\s+string\s*=\s*\"(true|false)\")?\s*>"
    ),
    parameter_close="</｜DSML｜parameter>",
    wrapper_closers=("</｜DSML｜function_calls>", "</｜DSML｜tool_calls>"),
    parameter_start="<｜DSML｜parameter ",
)
_XTML_ATTRIBUTES = r"(?:\s+[\w-]+=\"[^\"]*\")+\s*<\|sep\|>"
_KIMI_K3 = TagBlock(
    call_tag=re.compile(r"<\|open\|>call(?=\s)(?=.*?\stool=\"([^\"]*)\")" + _XTML_ATTRIBUTES),
    call_close="<|close|>call<|sep|>",
    parameter_tag=re.compile(
        r"<\|open\|>argument(?=\s)(?=.*?\skey=\"([^\"]*)\")(?:(?=.*?\stype=\"([^\"]*)\"))?" + _XTML_ATTRIBUTES
    ),
    parameter_close="<|close|>argument<|sep|>",
    wrapper_closers=("<|close|>tools<|sep|>",),
    tag_starts=("<|open|>", "<|close|>"),
    tag_end="<|sep|>",
    body_tags=(re.compile(r"<\|open\|>json(?:\s.*)?<\|sep\|>"), "<|close|>json<|sep|>"),
    attribute_entities=True,
    parameter_start="<|open|>argument ",
    not_inside=("<|sep|>", "<|close|><|"),
)
_ELEMENT = ElementBlock(
    TagBlock(
        call_tag=re.compile(r"(?!)"),
        call_close=f"</{TOOL}>",
        parameter_tag=re.compile(r"<([A-Za-z_][\w.-]*)\s*>"),
        parameter_close="</{key}>",
        entities=True,
        not_inside=("<{key}>",),
    )
)


def _tagged(name: str, note: str, block: TagBlock, wrappers: tuple[str, ...], *tags: str) -> Dialect:
    """Creates a dialect whose calls are tags.

    `wrappers`: markers that come before the tag of a call. `tags`: how the tag of a call begins.
    """
    openers = [Opener(marker, block) for marker in wrappers]
    return Dialect(name, (*openers, *(Opener(marker, block, whole=True) for marker in tags)), note=note)


_DSML_WRAPPERS = ("<｜DSML｜function_calls>", "<｜DSML｜tool_calls>")

TAGGED = (
    _tagged(
        "use_tool", "models with older prompts of Obsidian Copilot", _USE_TOOL, (), "<use_tool>", "<use_tool "
    ),
    _tagged("qwen_xml", "Qwen3-Coder, Qwen3.5, Nemotron 3, MiMo", _QWEN, ("<tool_call>",), "<function="),
    _tagged("anthropic", "models trained on Claude's output", _ANTHROPIC, ("<function_calls>",), "<invoke "),
    _tagged("glm", "GLM-4.5, 4.6 and 4.7", _GLM, ("<tool_call>",)),
    _tagged("minimax", "MiniMax M2", _MINIMAX, ("<minimax:tool_call>",)),
    _tagged("dsml", "DeepSeek V3.2 and V4", _DSML, _DSML_WRAPPERS, "<｜DSML｜invoke "),
    _tagged("kimi_k3", "Kimi K3", _KIMI_K3, ("<|open|>tools<|sep|>",), "<|open|>call "),
    _dialect(
        "tag_is_tool",
        "models whose prompt describes calls in XML or YAML, as the prompts of Cline and Roo do",
        Opener(f"<{TOOL}>", _ELEMENT, whole=True),
    ),
)


# --- literals: Python calls, and Gemma's own ---


def _python(marker: str, closer: str) -> Opener:
    return Opener(marker, PythonBlock((closer,)))


LITERAL = (
    _dialect(
        "pythonic",
        "Llama 4, Llama 3.2, ToolACE, Gemma 3; OLMo 3 (with tags around the calls)",
        Opener(f"[{TOOL}(", PythonBlock(exact=True), whole=True, line_start=True),
        _python("<|python_start|>", "<|python_end|>"),
        _python("<function_calls>", "</function_calls>"),
    ),
    _dialect("lfm2", "LiquidAI LFM2 and LFM2.5", _python("<|tool_call_start|>", "<|tool_call_end|>")),
    _dialect(
        "gemma",
        "Gemma 4, FunctionGemma",
        Opener("<|tool_call>", GemmaBlock('<|"|>', ("<tool_call|>", "<turn|>"))),
        Opener("<start_function_call>", GemmaBlock("<escape>", ("<end_function_call>",), untyped=True)),
    ),
)
