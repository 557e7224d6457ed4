"""Dialects whose calls are tags, with values as text between tags. Standard library only."""

from __future__ import annotations

import re
import string

from toolwire.emulate.dialects.shapes import TOOL, Dialect, ElementBlock, Opener, TagBlock

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
    parameter_tag=re.compile(r"<｜DSML｜parameter\s+name\s*=\s*\"([^\"<>]+)\"(?:\s+string\s*=\s*\"(true|false)\")?\s*>"),
    parameter_close="</｜DSML｜parameter>",
    wrapper_closers=("</｜DSML｜function_calls>", "</｜DSML｜tool_calls>"),
    parameter_start="<｜DSML｜parameter ",
)
_XTML_ATTRIBUTES = r"(?:\s+[\w-]+=\"[^\"]*\")+\s*<\|sep\|>"
_KIMI_K3 = TagBlock(
    call_tag=re.compile(r"<\|open\|>call(?=\s)(?=.*?\stool=\"([^\"]*)\")" + _XTML_ATTRIBUTES),
    call_close="<|close|>call<|sep|>",
    parameter_tag=re.compile(r"<\|open\|>argument(?=\s)(?=.*?\skey=\"([^\"]*)\")(?:(?=.*?\stype=\"([^\"]*)\"))?" + _XTML_ATTRIBUTES),
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
    Dialect("kimi_k3", (Opener("<|open|>tools<|sep|>", _KIMI_K3), Opener("<|open|>call ", _KIMI_K3, whole=True)), note="Kimi K3"),
    Dialect("tag_is_tool", (Opener(f"<{TOOL}>", _ELEMENT, whole=True),), note="Cline- and Roo-like prompts, XML and YAML middleware"),
)
