"""The cost of the parsers of other model servers, as published or measured on their own code.

`make bench` does not measure these parsers, because they need the rest of their servers. The figures are
thread CPU times of the code of August 2026, fed with pieces of four characters, on two cores and Python 3.11.
The projects report the same costs in the pull requests that the table names.
"""

from __future__ import annotations

PAGE = """## Emulated calls compared with the parsers of model servers

In Toolwire, a chunk of a call costs about the same after 1 KB and after 1 MB of arguments, as the first table
shows. In the parsers of model servers, the cost grows with the length of the arguments. Their figures were
measured separately, not in this run, with chunks of 4 characters:

| parser | CPU time per chunk, after 1 KB of arguments | after 10 KB | after 100 KB | code |
|---|---:|---:|---:|---|
| vLLM, Hermes | 44 µs | 66 µs | 319 µs | vLLM, commit a014e35f |
| SGLang, Hermes | 460 µs | 3,126 µs | 43,415 µs | SGLang, commit cce0a124 |

The parser of vLLM's engine for Qwen3, in the same commit, takes 0.11 s for a whole call with 1 KB of
arguments, 6.1 s with 10 KB and 56 s with 30 KB. vLLM's pull requests 51577 and 52865 are about such costs.

The parsers also give different results:

| case | vLLM, Hermes | SGLang, Hermes | Toolwire |
|---|---|---|---|
| 22 texts, each split into chunks in different ways | for 9 texts, the result depends on the split \
| for all 22 texts, the result depends on the split; for 17 of them, even the calls differ \
| no result depends on the split, as fuzz tests check |
| `</tool_call>` inside a string of the arguments | ends the call \
| ends the call when not streamed | is part of the string |
| prose that mentions `<tool_call>` | no output | no output | is text |
| a call that the token limit cuts off | varies | varies | is never completed |
"""
