"""All formats of tool calls, as data."""

from __future__ import annotations

import re
import string
from string import ascii_letters, digits

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

# --- JSON objects with the name in them: `{"name": …, "arguments": …}` ---

_FENCED = JsonBlock(closers=("```",), exact=True)
_FENCE_WORDS = ("json", "tool_call", "tool_calls", "tool", "")
_HERMES = Opener("<tool_call>", JsonBlock(closers=("</tool_call>",)))
_LLAMA_CLOSERS = ("<|eom_id|>", "<|eot_id|>")
_BARE = Opener(
    "{",
    JsonBlock(closers=_LLAMA_CLOSERS, exact=True, separators=";", separated=True, open_ended=True),
    whole=True,
    line_start=True,
)

ENVELOPED = (
    Dialect(
        "sentinel",
        (Opener(f"<tool_call:{NONCE}>", JsonBlock(closers=(f"</tool_call:{NONCE}>", "</tool_call>"))),),
        recovery=False,
        note="what Toolwire teaches; its token is fresh for every request",
    ),
    Dialect("hermes", (_HERMES,), note="Hermes 2/3, Qwen2.5, Qwen3, Granite 4 and many fine-tunes"),
    Dialect("bare", (_BARE,), note="small models that leave the markers out"),
    Dialect(
        "fenced",
        tuple(Opener(f"```{word}\n", _FENCED, line_start=True) for word in _FENCE_WORDS),
        note="a call in a code fence",
    ),
    Dialect(
        "llama_json",
        (
            Opener("<|python_tag|>", JsonBlock(closers=_LLAMA_CLOSERS, separators=",;", open_ended=True)),
            _BARE,
        ),
        note="Llama 3.1, 3.2, 3.3",
    ),
    Dialect(
        "cohere",
        (
            Opener(
                "<|START_ACTION|>",
                JsonBlock(closers=("<|END_ACTION|>",), name_keys=frozenset({"tool_name", "name"})),
            ),
        ),
        note="Command R7B, Command A and later",
    ),
    Dialect(
        "granite",
        (Opener("<|tool_call|>", JsonBlock(closers=("<|end_of_text|>",), open_ended=True)), _HERMES),
        note="Granite 3; Granite 4 writes hermes",
    ),
)


# --- the name in a header of markers, then the arguments as JSON ---
#
# Dialects with the same markers are read alike, whichever of them is on: the text after the marker decides.
# They differ in how `render.py` writes calls.

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
_MISTRAL = (
    Opener("[TOOL_CALLS]", JsonBlock(closers=(_MISTRAL_CLOSE,), open_ended=True)),
    Opener("[TOOL_CALLS]", _MISTRAL_COMPACT),
)

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

HEADED: tuple[Dialect, ...] = (
    Dialect("mistral", _MISTRAL, note="Mistral 7B v0.3, Mixtral, Nemo, Small 2, Large 2: an array"),
    Dialect(
        "mistral_compact",
        _MISTRAL,
        note="Mistral Small 3, Medium 3, Ministral 3, Devstral, Magistral: the name before its arguments",
    ),
    Dialect("deepseek_v3", _DEEPSEEK, note="DeepSeek V3, R1"),
    Dialect("deepseek_v31", _DEEPSEEK, note="DeepSeek V3.1"),
    Dialect(
        "kimi",
        tuple(
            Opener(marker, _KIMI)
            for marker in (
                "<|tool_calls_section_begin|>",
                "<|tool_call_section_begin|>",
                "<|tool_call_begin|>",
            )
        ),
        note="Kimi K2; the id that it writes is the call's",
    ),
    Dialect(
        "harmony",
        (
            Opener("<|channel|>", _HARMONY),
            Opener("<|start|>", _HARMONY),
            Opener("to=functions.", _HARMONY, whole=True, answer_start=True),
        ),
        note="gpt-oss",
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
    first="_" + string.ascii_letters + string.digits,
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

TAGGED = (
    Dialect(
        "use_tool",
        (Opener("<use_tool>", _USE_TOOL, whole=True), Opener("<use_tool ", _USE_TOOL, whole=True)),
        note="older Obsidian Copilot prompts",
    ),
    Dialect(
        "qwen_xml",
        (Opener("<tool_call>", _QWEN), Opener("<function=", _QWEN, whole=True)),
        note="Qwen3-Coder, Qwen3.5, Nemotron 3, MiMo",
    ),
    Dialect(
        "anthropic",
        (Opener("<function_calls>", _ANTHROPIC), Opener("<invoke ", _ANTHROPIC, whole=True)),
        note="Claude-trained habit",
    ),
    Dialect("glm", (Opener("<tool_call>", _GLM),), note="GLM-4.5, 4.6 and 4.7"),
    Dialect("minimax", (Opener("<minimax:tool_call>", _MINIMAX),), note="MiniMax M2"),
    Dialect(
        "dsml",
        (
            Opener("<｜DSML｜function_calls>", _DSML),
            Opener("<｜DSML｜tool_calls>", _DSML),
            Opener("<｜DSML｜invoke ", _DSML, whole=True),
        ),
        note="DeepSeek V3.2 and V4",
    ),
    Dialect(
        "kimi_k3",
        (Opener("<|open|>tools<|sep|>", _KIMI_K3), Opener("<|open|>call ", _KIMI_K3, whole=True)),
        note="Kimi K3",
    ),
    Dialect(
        "tag_is_tool",
        (Opener(f"<{TOOL}>", _ELEMENT, whole=True),),
        note="Cline- and Roo-like prompts, XML and YAML middleware",
    ),
)


# --- literals: Python calls, and Gemma's own ---

LITERAL: tuple[Dialect, ...] = (
    Dialect(
        "pythonic",
        (
            Opener(f"[{TOOL}(", PythonBlock(exact=True), whole=True, line_start=True),
            Opener("<|python_start|>", PythonBlock(("<|python_end|>",))),
            Opener("<function_calls>", PythonBlock(("</function_calls>",))),
        ),
        note="Llama 4, Llama 3.2, ToolACE, Gemma 3; OLMo 3 between tags",
    ),
    Dialect(
        "lfm2",
        (Opener("<|tool_call_start|>", PythonBlock(("<|tool_call_end|>",))),),
        note="LiquidAI LFM2 and LFM2.5",
    ),
    Dialect(
        "gemma",
        (
            Opener("<|tool_call>", GemmaBlock('<|"|>', ("<tool_call|>", "<turn|>"))),
            Opener("<start_function_call>", GemmaBlock("<escape>", ("<end_function_call>",), untyped=True)),
        ),
        note="Gemma 4, FunctionGemma",
    ),
)
