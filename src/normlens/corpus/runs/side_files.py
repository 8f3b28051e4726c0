"""Files in a run's folder that hold nothing of its results: the run can be read without them."""

from __future__ import annotations

#: Held by the process that works here.
LOCK = "lock"
#: Where each shard begins in the data.
DATA_INDEX = "data-index.json"
#: What the process that works here is doing now.
ACTIVITY = "activity.json"

SIDE_FILES = (LOCK, DATA_INDEX, ACTIVITY)
