"""What the papers' experiments read, and the numbers that the papers report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from normlens.studies.papers.settings import Settings
from normlens.studies.reports import contents
from normlens.studies.reports.words import Comparison, Published

# What an experiment of a paper reads.


@dataclass(frozen=True, kw_only=True)
class Evidence(contents.Evidence):
    """The data an experiment reads, with the settings of the reproduction."""

    settings: Settings


# The numbers that the papers report, and a run's numbers beside them.


@cache
def published() -> tuple[Published, ...]:
    """Read all numbers in the package's data file."""
    contents = json.loads((files("normlens.studies.papers") / "published.json").read_text("utf-8"))
    return tuple(
        Published(key, **entry, **{name: group[name] for name in group if name != "values"})
        for group in contents["groups"]
        for key, entry in group["values"].items()
    )


def compare(measured: Mapping[str, float], evidence: Evidence) -> list[Comparison]:
    """Set published numbers beside the measured ones, all whose keys begin as a measured one does.

    Of several published models, the run's model is taken, or the first one if it is not among them.
    """
    found = []
    for group in dict.fromkeys(key.partition("/")[0] for key in measured):
        entries = [entry for entry in published() if entry.key.startswith(f"{group}/")]
        name = str(evidence.model["name"])
        of_this_model = [entry for entry in entries if _same_model(entry.model, name)]
        shown = of_this_model or [entry for entry in entries if entry.model == entries[0].model]
        for entry in shown:
            same = bool(of_this_model) and entry.data in (None, evidence.data)
            found.append(Comparison(entry, measured.get(entry.key), same))
    return found


def _same_model(ours: str, theirs: str) -> bool:
    """Compare hub names without their owner: google-bert/bert-base-uncased is bert-base-uncased."""
    return ours.lower().rpartition("/")[2] == theirs.lower().rpartition("/")[2]
