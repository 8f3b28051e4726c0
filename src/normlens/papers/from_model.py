"""What experiments need of the model itself, kept beside the runs; only this part needs torch."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from normlens.analysis.expansion import expansion_rates
from normlens.lens import Lens
from normlens.papers import words
from normlens.papers.experiments.expansion import FILE
from normlens.papers.experiments.frequency import RANKS, read_ranks
from normlens.papers.experiments.sentence import write_sentence
from normlens.papers.settings import Settings
from normlens.spreadsheet import write_csv
from normlens.store import writing


def read_ranks_file(settings: Settings) -> bytes | None:
    """The file of frequency ranks, checked before hours are spent on runs."""
    if settings.ranks is None or "mixing" not in settings.kinds:
        return None
    read_ranks(settings.ranks)
    return Path(settings.ranks).read_bytes()


def write_from_model(lens: Lens, settings: Settings, ranks: bytes | None, folder: Path) -> None:
    """What the weights alone show, the maps of one sentence pair, and a copy of the ranks."""
    folder.mkdir(parents=True, exist_ok=True)
    if ranks is None:
        (folder / RANKS).unlink(missing_ok=True)
    else:
        (folder / RANKS).write_bytes(ranks)
    write_expansion(lens, folder)
    write_sentence(lens, settings, folder)


def write_expansion(lens: Lens, folder: Path) -> Path:
    """Write the expansion rate of every layer, by definition and as published."""
    rates = expansion_rates(lens)
    frame = pd.DataFrame(
        {
            words.LAYER: range(1, len(rates) + 1),
            "rate": rates,
            "as_published": expansion_rates(lens, published=True),
        }
    )
    with writing(folder / FILE, overwrite=True) as temporary:
        write_csv(frame, temporary)
    return folder / FILE
