"""All laws by name. `PROPERTIES[name](rng)` tries one random case and raises when the law does not hold; the tests run a few hundred of each, `run.py` millions."""

from __future__ import annotations

from fuzz import scanner_laws, wire_laws
from fuzz.law import Law

PROPERTIES: dict[str, Law] = {**scanner_laws.LAWS, **wire_laws.LAWS}
