"""Whose contributions a map shows: those of a layer's input vectors, or of the model's tokens."""

from __future__ import annotations

LAYER, INPUT = "layer", "input"
ORIGINS = (LAYER, INPUT)

#: What titles say of maps whose sources are not the layer's own.
IN_WORDS = {INPUT: "sources: input tokens"}
