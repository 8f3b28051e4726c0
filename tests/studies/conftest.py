"""Small models, corpora and runs of the other rooms' tests."""

from __future__ import annotations

import sys
from pathlib import Path

for folder in ("corpus", "explain"):
    sys.path.append(str(Path(__file__).parents[1] / folder))
