"""What tuning found becomes presets: `federec train METHOD --data SET --preset clean`.

    python benchmarks/presets.py

Writes src/federec/methods/tuned.yaml from the searches in docs/results/records.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from federec.reproduction.grids import TUNED
from federec.reproduction.records import Book

ROOT = Path(__file__).parent.parent


def tuned(book: Book) -> dict[str, dict[str, Any]]:
    """Method with its plug-ins -> preset -> settings."""
    found: dict[str, dict[str, Any]] = {}
    for row in TUNED.rows:
        for data in TUNED.data:
            search = book.search(row, data)
            if search and search["best"] and not row.settings:  # ablations have settings of their own
                found.setdefault(row.label, {})[f"{data}-clean"] = search["best"]
    return found


if __name__ == "__main__":
    found = tuned(Book(ROOT / "docs/results/records"))
    text = yaml.safe_dump(found, sort_keys=False, default_flow_style=None, width=200)
    note = "# Written by benchmarks/presets.py from docs/results/records: do not edit.\n"
    (ROOT / "src/federec/methods/tuned.yaml").write_text(note + text, encoding="utf-8")
