"""A small data set inside the package: English sentences and passages with named entities."""

from __future__ import annotations

from pathlib import Path

#: JSONL files with words and entities; `open_data("sample")` reads them.
FOLDER = Path(__file__).with_name("sample_files")

#: What the entities are: people, places, organisations, and other names (works, peoples, events).
LABELS = ("PER", "LOC", "ORG", "MISC")
