"""``normlens.align``: words of a source and its target, linked by a decoder's maps."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from normlens.corpus.data.formats import SEPARATOR, split_pair
from normlens.corpus.data.readers import open_data
from normlens.corpus.data.records import Data, Record
from normlens.corpus.measures.base import BoundMeasure, Item, ModelMeasure, Needs
from normlens.corpus.runs.folder import fixed_path
from normlens.corpus.runs.options import Execution, RunOptions
from normlens.corpus.runs.progress import Progress
from normlens.corpus.runs.results import Run
from normlens.errors import TABLES, InputError, check_installed, require
from normlens.lens import Lens
from normlens.measures.alignment import count_links
from normlens.options import (
    AnalysisOptions,
    check_keywords,
    names_of,
    shows_fields_of,
    split_keywords,
)
from normlens.scopes import components_of
from normlens.studies.alignment import gold as standard
from normlens.studies.alignment.links import Chosen, Reading, WordPlaces, choose, explained, pharaoh
from normlens.studies.alignment.options import (
    RUN_FIELDS,
    AlignOptions,
)
from normlens.studies.driver import GivenData, GivenModel, Planned, one_measure

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from normlens._keywords import AlignKeywords
    from normlens.corpus.engines.block_rows import Clock
    from normlens.lens import Lens
    from normlens.results.maps import Maps

# Word alignment as a measure of a corpus: links of every sentence pair, counted against gold.


@dataclass(frozen=True, eq=False)
class AlignmentMeasure(AlignOptions, ModelMeasure):
    """Links between the words of a source and its target, per layer, scope, way and head.

    Kobayashi et al. 2020, section 5. Words of a gold file count from 0 unless `gold_first` says
    otherwise.
    """

    name = "alignment"
    tables = standard.SCHEMAS
    order = standard.ORDER
    reads_pairs = True
    needs = Needs(scopes=(), arrays=False, pairs=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.gold_links  # a file that cannot be read is refused at once

    @cached_property
    def gold_links(self) -> standard.Gold | None:
        return None if self.gold is None else standard.read_gold(self.gold)

    @property
    def options(self) -> dict[str, Any]:
        if self.gold_links is None:
            return self.settings
        # Another gold file under the same name would be another run.
        first = {"gold_first": self.gold_first or 0}
        return {**self.settings, "gold": self.gold_links.digest, **first}

    def bind(self, lens: Lens, batch_size: int | str) -> BoundMeasure:
        chosen = choose(lens, self.scopes, self.layers, self.ways, self.head)
        if any("FF" in components_of(scope) for scope in chosen.scopes.values()):
            lens = copy.copy(lens).prepare()
        return _Alignment(self, lens, chosen, batch_size)

    def gold_of(self, item: Item) -> standard.GoldLinks | None:
        """The gold links of a sentence pair, from 0; None without a gold file."""
        gold, first, encoded = self.gold_links, self.gold_first or 0, cast(Any, item.encoded)
        if gold is None:
            return None
        require(
            encoded.generated is None, "gold links are of a given target; this one was generated"
        )
        fits = item.index < len(gold.lines)
        require(fits, f"{gold.path!r} has no line for it, only {len(gold.lines)}")
        line = gold.lines[item.index]
        lengths = len(encoded.source.word_labels), len(encoded.word_labels)
        require(line.fits(first, lengths), "its gold links are of words that it does not have")
        return line.counted_from(first)


@dataclass(frozen=True)
class _Alignment(BoundMeasure):
    measure: AlignmentMeasure
    lens: Lens
    chosen: Chosen
    batch_size: int | str

    def batch_rows(self, items: Sequence[Item], clock: Clock) -> list[dict[str, pa.Table] | str]:
        encoded: list[Any] = [item.encoded for item in items]
        readings: list[list[Reading]] = [[] for _ in items]
        worst = [0.0] * len(items)
        if self.chosen.scopes:
            with clock.on("maps"):
                options = AnalysisOptions(
                    scopes=list(self.chosen.scopes.values()),
                    layers=self.chosen.layers,
                    heads=bool(self.chosen.heads),
                    batch_size=self.batch_size,
                )
                for place, maps in enumerate(self.lens.analyse(encoded, options)):
                    readings[place] += self._of_maps(maps, len(encoded[place].source))
                    worst[place] = max(worst[place], maps.completeness)
        if self.chosen.explains:
            with clock.on("explanations"):
                for place, reading, error in explained(self.lens, encoded, self.batch_size):
                    readings[place].append(reading)
                    worst[place] = max(worst[place], error)
        with clock.on("alignment"):
            return [
                self._rows(item, read, error)
                for item, read, error in zip(items, readings, worst, strict=True)
            ]

    def _of_maps(self, maps: Maps, sources: int) -> Iterator[Reading]:
        """Yield the encoder's columns of every requested map."""
        ways = self.measure.ways
        for name, scope in self.chosen.scopes.items():
            if self.chosen.together:
                scores = maps[scope][:, :, :sources]
                yield Reading(name, None, maps.layers_of(scope), ways, scores)
            if name not in maps.heads:
                continue
            layers = maps.covered("heads", name)
            for head in self.chosen.heads:
                yield Reading(name, head, layers, ways, maps.heads[name][:, head, :, :sources])

    def _rows(
        self, item: Item, readings: Sequence[Reading], completeness: float
    ) -> dict[str, pa.Table] | str:
        encoded: Any = item.encoded
        try:
            places = WordPlaces.of(encoded.source.words, encoded.words)
            gold = self.measure.gold_of(item)
        except InputError as error:
            return str(error)
        whose = {"index": item.index, "sequence": item.sequence}
        rows = []
        for read in readings:
            for way in read.ways:
                maps = places.links(read.scores, way)
                for layer, links in zip(read.layers, maps, strict=True):
                    row = {**whose, "layer": layer, "scope": read.scope, "way": way}
                    row |= {"head": read.head, "alignment": pharaoh(links), "links": len(links)}
                    if gold is not None:
                        row |= count_links(links, gold.sure, gold.possible)._asdict()
                    rows.append(row)
        texts = {
            **whose,
            "source": " ".join(encoded.source.word_labels),
            "target": " ".join(encoded.word_labels),
            "generated": encoded.generated is not None,
            "gold_sure": None if gold is None else pharaoh(sorted(gold.sure)),
            "gold_possible": None if gold is None else pharaoh(sorted(gold.possible)),
            "completeness": completeness,
        }
        return {
            "alignment": pa.Table.from_pylist(rows, schema=standard.ALIGNMENT),
            "alignment_texts": pa.Table.from_pylist([texts], schema=standard.TEXTS),
        }


# ``normlens.align``: words of a source and its target, linked by a decoder's maps.


MEASURE = "alignment"
_READING = ("column", "pair_column", "paragraphs")
_NOT_TAKEN = tuple(name for name in names_of(RunOptions) if name not in RUN_FIELDS)


@shows_fields_of(AlignOptions, RunOptions, Execution, without=_NOT_TAKEN)
def align(
    model: GivenModel,
    data: GivenData,
    out: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    **options: Unpack[AlignKeywords],
) -> Run:
    """Link the words of every pair of `data`; with gold links, count how well they agree.

    ``align("my-marian", "parallel:pairs.txt", "my-alignment", gold="pairs.gold")``. `out` is a new
    folder, or one that holds the same alignment, which is then finished. Its folder ``links`` has
    a file in Pharaoh's format for each layer, scope, way and head;
    `normlens.studies.alignment.gold` gives the error rates. Without a target the model generates
    one. The options are those of `AlignOptions`, of `normlens.run` and of `Execution`.
    """
    check_keywords(align, options)
    return _aligned(out, model, data, options, progress, new=True)


def resume_alignment(out: str | os.PathLike[str], **given: Any) -> Run:
    """Finish an alignment that was stopped; its options may be given again, but no others."""
    own = {"model": None, "data": None, "progress": None} | given
    model, data, progress = (own.pop(name) for name in ("model", "data", "progress"))
    check_keywords(align, own)
    return _aligned(out, model, data, own, progress, new=False)


def _aligned(
    out: str | os.PathLike[str],
    model: GivenModel | None,
    data: GivenData | None,
    options: Mapping[str, Any],
    progress: Progress | None,
    new: bool,
) -> Run:
    check_installed(TABLES)  # the links are read from them
    own, of_run = split_keywords(options, AlignOptions)
    chosen = AlignOptions(**own)
    given = {name: value for name, value in chosen.settings.items() if name in own}
    if chosen.gold is not None:
        given["gold"] = fixed_path(chosen.gold)
    if chosen.gold_first is not None:
        given["gold_first"] = chosen.gold_first

    def plan(model: GivenModel, data: GivenData) -> Planned:
        gold = {} if chosen.gold is None else _gold(chosen, data, of_run)
        return Planned(
            model, chosen.settings | gold, {"max_length": None, **of_run, "truncate": False}
        )

    done = one_measure(
        MEASURE, "an alignment", out, model, data, given, of_run, progress, plan if new else None
    )
    standard.write_links(done)
    return done


def _gold(options: AlignOptions, data: GivenData, of_run: dict[str, Any]) -> dict[str, Any]:
    """The settings of a gold file that has a fitting line for each pair of the data."""
    assert options.gold is not None
    gold = standard.read_gold(options.gold)
    reading = {name: of_run[name] for name in _READING if name in of_run}
    # Of all pairs, however many are to be aligned: otherwise lines and pairs could be shifted.
    pairs = data if isinstance(data, Data) else open_data(fixed_path(data), **reading)
    lengths = [_lengths(record) for record in pairs]
    return {
        "gold": fixed_path(options.gold),
        "gold_first": gold.first_word(lengths, options.gold_first),
    }


def _lengths(record: Record) -> tuple[int, int]:
    """Count a pair's words on either side."""
    if record.words is not None and record.second_words is not None:
        return len(record.words), len(record.second_words)
    if isinstance(record.text, tuple):
        return len(record.text[0].split()), len(record.text[1].split())
    pair = None if record.text is None else split_pair(record.text)
    if pair is None:
        reason = record.unreadable or (
            f"it is no pair of a source and a target; write them with {SEPARATOR} between them, "
            "or choose two columns"
        )
        raise InputError(f"{record.id} cannot be compared with gold links: {reason}")
    return len(pair[0]), len(pair[1])
