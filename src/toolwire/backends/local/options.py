"""The keys of [models.ID] with `backend = "local"`."""

from __future__ import annotations

import os
from dataclasses import dataclass

from toolwire.emulate.schemas.bounding import SchemaLimits

RANGES: dict[str, tuple[float, float]] = {
    "context": (256, 1 << 20),
    "parallel": (1, 64),
    "threads": (0, 512),
    "batch": (32, 4096),
    "temperature": (0, 2),
    "top_p": (0, 1),
    "max_tokens": (1, 1 << 20),
    "max_string": (0, 1 << 20),
    "max_items": (0, 4096),
}
MOST_THREADS = 8
SMALL = 500_000_000
"""A file below this holds a model that loses its way: what it may write is kept short."""


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """`gguf`: a path; empty: the model of `toolwire local pull`. `context`: tokens of one request, prompt and answer; `parallel`: so many requests
    are decoded together, others wait. `threads` 0: as many as fit the machine. `batch`: tokens of a prompt that are read in one step; a run can be
    stopped between two steps. `temperature`, `top_p`, `max_tokens`: where the client says nothing; a required call, which ends by itself, may take
    half the context. `max_string` characters and `max_items` end what a tool's schema leaves open; 0: by the model's size."""

    gguf: str = ""
    context: int = 8192
    parallel: int = 2
    threads: int = 0
    batch: int = 128
    temperature: float = 0.2
    top_p: float = 0.9
    max_tokens: int = 1024
    max_string: int = 0
    max_items: int = 0

    def __post_init__(self) -> None:
        for key, (low, high) in RANGES.items():
            if not low <= getattr(self, key) <= high:
                raise ValueError(f"{key}: expected {low} to {high}, got {getattr(self, key)}")

    def limits(self, size: int) -> SchemaLimits:
        """What ends a string or an array that its schema leaves open."""
        small = size < SMALL
        return SchemaLimits(
            string=self.max_string or (96 if small else 8192),
            items=self.max_items or (4 if small else 64),
            keys=4 if small else 32,
        )

    @property
    def cores(self) -> int:
        """The threads to decode with: every core of a small machine, half the logical ones of a large one."""
        if self.threads:
            return self.threads
        there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return there if there <= 4 else min(there // 2, MOST_THREADS)
