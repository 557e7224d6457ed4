"""Runs axe-core in a page. `LOOKS` has the screen sizes and themes in which every page is checked.

By default, two of them are checked; TOOLWIRE_AXE_LOOKS=4 checks every theme on every screen size.
"""

from __future__ import annotations

import os
from typing import Any

WIDE: Any = {"width": 1280, "height": 800}
PHONE: Any = {"width": 390, "height": 844}
LOOKS: Any = ((WIDE, "light"), (PHONE, "dark"), (PHONE, "light"), (WIDE, "dark"))[
    : int(os.environ.get("TOOLWIRE_AXE_LOOKS", "2"))
]
RUN = """async () => {
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))
  const found = await axe.run(document, {resultTypes: ['violations'], preload: false})
  const described = (node) => `${node.target} ${node.failureSummary}`
  return found.violations.map((one) => `${one.id}: ${one.help}: ` + one.nodes.map(described).join(' | '))
}"""
