"""The cost of the parsers of other model servers, as published or measured on their own code.

`make bench` does not measure these parsers, because they need the rest of their servers. The figures are
thread CPU times of the code of August 2026, fed with pieces of four characters, on two cores and Python 3.11.
The projects report the same costs in the pull requests that the table names.
"""

from __future__ import annotations

PAGE = """## Emulated calls compared with the parsers of model servers

The table above has Toolwire's figures: a chunk costs the same after 1 KB and after 1 MB. The figures of \
other parsers were measured separately, not in this run:

| parser | a chunk of a call, after 1 KB | 10 KB | 100 KB of arguments | source |
|---|---:|---:|---:|---|
| vLLM, Hermes | 44 µs | 66 µs | 319 µs | a014e35f, measured separately |
| SGLang, Hermes | 460 µs | 3,126 µs | 43,415 µs | cce0a124, measured separately |
| vLLM, engine for Qwen3 | 0.11 s for the whole call | 6.1 s | 56 s at 30 KB \
| a014e35f, measured separately; vLLM's pull requests 51577 and 52865 |

The parsers also give different results:

| case | vLLM, Hermes | SGLang, Hermes | Toolwire |
|---|---|---|---|
| the same text, split differently, gives different results (22 texts) \
| 9 differ | 22 differ, 17 of them in the calls | none differ, as fuzz tests check |
| `</tool_call>` inside a string of the arguments | ends the call \
| ends the call when not streamed | is part of the string |
| prose that mentions `<tool_call>` | no output | no output | is text |
| a call that the token limit cuts | varies | varies | is cut, never completed |
"""
