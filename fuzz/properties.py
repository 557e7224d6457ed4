"""All laws by name. `PROPERTIES[name](rng)` tries one random case and raises if the law is broken.

The tests run a few hundred cases of each law, `run.py` runs any number.
"""

from __future__ import annotations

from fuzz import consent_laws, dialect_laws, mutation_laws, scanner_laws, vault_laws, wire_laws
from fuzz.law import Law

PROPERTIES: dict[str, Law] = {
    **scanner_laws.LAWS,
    **dialect_laws.LAWS,
    **mutation_laws.LAWS,
    **vault_laws.LAWS,
    **consent_laws.LAWS,
    **wire_laws.LAWS,
}
