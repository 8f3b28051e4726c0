"""The names of losses; nothing here needs torch."""

from __future__ import annotations

NEXT_TOKEN, MASKED, CLASSES, DRIFT = "next-token", "masked", "classes", "drift"
#: The loss of the model's head.
AUTO = "auto"
NAMES = (AUTO, NEXT_TOKEN, MASKED, CLASSES, DRIFT)
