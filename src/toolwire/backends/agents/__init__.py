"""What agent backends share: runs that outlive a request, the history for a new agent, idle sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# --- options ------------------------------------------------------------
#
# What the options of all agents have in common. Standard library only.


def check_numbers(options: object, at_least: Mapping[str, int], above_zero: Sequence[str]) -> None:
    """Raises `ValueError` with one line that names the first key whose number is too small."""
    for key, least in at_least.items():
        if getattr(options, key) < least:
            raise ValueError(f"{key}: expected at least {least}")
    for key in above_zero:
        if not getattr(options, key) > 0:
            raise ValueError(f"{key}: expected a number above 0")
