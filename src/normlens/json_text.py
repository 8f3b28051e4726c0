"""Parsing of JSON that comes from outside the package."""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text, or a ValueError that says what is wrong with it."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
