"""Dialects whose calls have their name in a header of markers, and then the arguments as JSON. Standard library only.

Dialects that share their markers are read alike, whichever of them is on: what stands behind the marker tells them apart. They differ in how calls
are written.
"""

from __future__ import annotations

import re
from string import ascii_letters, digits

from toolwire.emulate.dialects.shapes import Dialect, HeadedBlock, JsonBlock, Opener

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
_DEEPSEEK = tuple(Opener(marker, _DEEPSEEK_BLOCK) for marker in ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"))

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
    Dialect("mistral_compact", _MISTRAL, note="Mistral Small 3, Medium 3, Ministral 3, Devstral, Magistral: the name before its arguments"),
    Dialect("deepseek_v3", _DEEPSEEK, note="DeepSeek V3, R1"),
    Dialect("deepseek_v31", _DEEPSEEK, note="DeepSeek V3.1"),
    Dialect(
        "kimi",
        tuple(Opener(marker, _KIMI) for marker in ("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>", "<|tool_call_begin|>")),
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
