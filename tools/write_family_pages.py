"""Write the generated parts of README.md and docs/models.md: run it after adding a family."""

from __future__ import annotations

import re
from pathlib import Path

from normlens.family_page import models_tables, readme_lines

ROOT = Path(__file__).resolve().parents[1]
PART = re.compile(r"(<!-- families:[^\n]*-->\n).*?(<!-- /families -->)", re.S)


def rewrite(path: Path, text: str) -> None:
    """Put `text` between the two marks of a document."""
    document, count = PART.subn(lambda marks: f"{marks[1]}\n{text}\n{marks[2]}", path.read_text())
    if count != 1:
        raise SystemExit(f"{path} has {count} parts for families, not one")
    path.write_text(document)


if __name__ == "__main__":
    rewrite(ROOT / "README.md", readme_lines())
    rewrite(ROOT / "docs" / "models.md", models_tables())
