"""The figures of `bench/bfcl.py` as tables: accuracy by category, speed and memory, tasks in a vault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench import vault_tasks
from bench.bfcl_cases import CATEGORIES, LICENCE, PACKAGE, VERSION
from toolwire.settings.extras import add_extra, own_command

CUT, CUT_PARALLEL = 128, 256
"""The token limits of an answer: CUT for one call or a text, CUT_PARALLEL for several calls."""
HELD = 2
"""The number of cases in each category that llama.cpp gets with `required`.

Only a few, because llama.cpp has no grammar for the model's format and writes up to the token limit each
time.
"""
TOOLS = (1, 5, 20)
SIDES = {
    "auto": "Toolwire, `auto`",
    "required": "Toolwire, `required`",
    "template": "the model's own template, without a grammar",
    "llama.cpp": "llama.cpp's own server, `auto`",
    "llama.cpp required": "llama.cpp's own server, `required`",
}
Measured = dict[str, dict[str, dict[str, Any]]]
"""The results by model, by kind (such as a key of `SIDES`), and by the id of the case or task."""
Table = list[list[str]]


def accuracy(measured: Measured) -> Table:
    table = [["model", "calls made by", *CATEGORIES, "all"]]
    for name, data in measured.items():
        for side, title in SIDES.items():
            results = list(data.get(side, {}).values())
            if results:
                kinds = [[one for one in results if one["category"] == kind] for kind in CATEGORIES]
                table.append([name, title, *map(share, kinds), share(results)])
    return table


def share(results: Sequence[Mapping[str, Any]]) -> str:
    return f"{sum(one['right'] for one in results)} / {len(results)}" if results else "–"


def speeds(measured: Measured) -> Table:
    head = ["model", "writes", "reads the prompt", "peak memory"]
    table = [[*head, *(f"first call, {number} tool{'s' * (number > 1)}" for number in TOOLS)]]
    for name, data in measured.items():
        one = data["resources"][""]
        times = [" / ".join(map(in_seconds, one["first_call"][str(number)])) for number in TOOLS]
        rates = ["{:.0f} tokens/s ({:.0f})".format(*one[what]) for what in ("writing", "reading")]
        table.append([name, *rates, f"{one['memory'] / 1e9:.1f} GB", *times])
    return table


def in_seconds(time: Sequence[float] | None) -> str:
    return "{:.1f} s ({:.1f})".format(*time) if time else "no call"


def vault(measured: Measured) -> Table:
    done = {
        name: [data["tasks"][task.asked]["right"] for task in vault_tasks.TASKS]
        for name, data in measured.items()
    }
    table = [["task", *measured]]
    for number, task in enumerate(vault_tasks.TASKS):
        table.append([task.asked, *("done" if right[number] else "not done" for right in done.values())])
    return [*table, ["all", *(f"{sum(right)} / {len(right)}" for right in done.values())]]


def report(measured: Measured, per: int, seed: int) -> dict[str, Any]:
    if not measured:
        missing = f"no embedded model is here: {add_extra('local')}, then {own_command('local pull')}"
        return {"figures": "nothing measured", "tables": [], "notes": [missing]}
    tables = [accuracy(measured), speeds(measured), vault(measured)]
    rights = [f"{row[0]} {row[-1]}" for row in tables[0] if row[1] == SIDES["auto"]]
    done = [f"{name} {count}" for name, count in zip(measured, tables[2][-1][1:], strict=True)]
    notes = [
        f"The cases are from {PACKAGE} {VERSION} ({LICENCE}): {per} of each category, drawn with seed "
        f"{seed}. The temperature is 0. An answer has at most {CUT} tokens, or {CUT_PARALLEL} if a "
        "case needs several calls.",
        f"With `required`, llama.cpp's own server gets only {HELD} cases of each category.",
        "The machine is shared, so the times vary. The figures in brackets count CPU seconds instead, which "
        "hardly depend on other programs.",
        "First call: the time to the model's first call. The first value is for a new prompt, the second for "
        "another question about the same tools.",
        "Memory includes the mapped model file.",
    ]
    figures = f"BFCL, `auto`: {', '.join(rights)}; vault tasks: {', '.join(done)}"
    return {"figures": figures, "tables": tables, "notes": notes}
