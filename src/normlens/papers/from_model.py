"""Files that experiments need from the model itself, kept beside the runs."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from normlens.lens import Lens
from normlens.measures.tensors import expansion_rates
from normlens.papers.kobayashi2021 import expansion_rate, frequency_ranks
from normlens.papers.kobayashi2021.example_sentence import write_sentence
from normlens.papers.settings import Settings
from normlens.reports import words
from normlens.results.store import writing
from normlens.results.words import write_csv


def read_ranks_file(settings: Settings) -> bytes | None:
    """Read and check the file of frequency ranks, before hours are spent on runs."""
    if settings.ranks is None or "mixing" not in settings.kinds:
        return None
    frequency_ranks.read_ranks(settings.ranks)
    return Path(settings.ranks).read_bytes()


def write_from_model(lens: Lens, settings: Settings, ranks: bytes | None, folder: Path) -> None:
    """Write the expansion rates, the maps of one sentence pair, and a copy of the ranks."""
    folder.mkdir(parents=True, exist_ok=True)
    if ranks is None:
        (folder / frequency_ranks.FILE).unlink(missing_ok=True)
    else:
        (folder / frequency_ranks.FILE).write_bytes(ranks)
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
    with writing(folder / expansion_rate.FILE, overwrite=True) as temporary:
        write_csv(frame, temporary)
    return folder / expansion_rate.FILE
