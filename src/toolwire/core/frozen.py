"""Records that nobody changes, and that cost little to make.

To mypy `record` is `dataclass`: where it says `frozen=True`, an assignment to a field is an error, and nothing that is one gets into the code. At run
time the fields are set directly. `dataclass` would set each of a frozen record's by a call, which was a tenth of the work on a small request. They
compare and hash alike. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

__all__ = ["record"]

if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:

    def record(*, frozen: bool, slots: bool) -> Callable[[type], type]:
        return dataclass(slots=slots, unsafe_hash=frozen)
