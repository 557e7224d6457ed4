"""Dialects whose calls are tags, with values as text between tags. Standard library only."""

from __future__ import annotations

import re

from toolwire.emulate.dialects.shapes import Dialect, Opener, TagBlock

_NAME_ATTRIBUTE = r"""\s+name\s*=\s*["']([^"'<>]+)["']\s*>"""

_QWEN = TagBlock(
    call_tag=re.compile(r"<function=\s*[\"']?([^\"'<>\s]+)[\"']?\s*>"),
    call_close="</function>",
    parameter_tag=re.compile(r"<parameter=\s*([^<>\n]+?)\s*>"),
    parameter_close="</parameter>",
    wrapper_closers=("</tool_call>",),
    trim_newline=True,
)
_ANTHROPIC = TagBlock(
    call_tag=re.compile(r"<invoke" + _NAME_ATTRIBUTE),
    call_close="</invoke>",
    parameter_tag=re.compile(r"<parameter" + _NAME_ATTRIBUTE),
    parameter_close="</parameter>",
    wrapper_closers=("</function_calls>",),
)
_USE_TOOL = TagBlock(
    call_tag=re.compile(r"""<use_tool(?:\s+name\s*=\s*["']([^"'<>]+)["'])?\s*>"""),
    call_close="</use_tool>",
    parameter_tag=re.compile(r"<([A-Za-z_][\w.-]*)\s*>"),
    parameter_close="</{key}>",
    name_child="name",
    entities=True,
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
)
