"""Word alignment as a measure of a corpus: links of every sentence pair, counted against gold."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from normlens.alignment.choosing import Chosen, choose
from normlens.alignment.contributions import explained
from normlens.alignment.gold import Gold, GoldLinks, read_gold
from normlens.alignment.options import DEFAULT_SCOPES, WAYS, parse_several
from normlens.alignment.readings import Reading
from normlens.alignment.tables import ALIGNMENT, COUNTS, ORDER, TABLES, TEXTS
from normlens.alignment.word_links import WordPlaces, pharaoh
from normlens.corpus.measures.base import BoundMeasure, Item, ModelMeasure, Needs
from normlens.errors import InputError, check_choice
from normlens.inputs.text import Encoded
from normlens.measures.alignment import Link, count_links
from normlens.options import AnalysisOptions
from normlens.scopes import components_of

if TYPE_CHECKING:
    from normlens.corpus.engines.prepared import Clock
    from normlens.lens import Lens
    from normlens.results.maps import Maps


class AlignmentMeasure(ModelMeasure):
    """Links between the words of a source and its target, per layer, scope, way and head.

    Kobayashi et al. 2020, section 5. `scopes` are those of the decoder that the source has reached
    ("all" is every one; "explain": contributions to logits), `layers` count from 0, `ways` are
    "input" and "output", `head` is one head or "all". `gold` is a file with a line of gold links
    for each sentence pair, and `gold_first` the number of a sentence's first word in it.
    """

    name = "alignment"
    tables = TABLES
    order = ORDER
    reads_pairs = True
    needs = Needs(scopes=(), arrays=False, pairs=True)

    def __init__(
        self,
        scopes: str | Sequence[str] = DEFAULT_SCOPES,
        layers: int | Sequence[int] | None = None,
        ways: str | Sequence[str] = WAYS,
        head: int | str | None = None,
        gold: str | None = None,
        gold_first: int = 0,
    ):
        self.scopes, self.ways = parse_several(scopes), parse_several(ways)
        self.layers = [layers] if isinstance(layers, int) else layers
        for way in self.ways:
            check_choice(way, WAYS, "way")
        self.head = head
        self.gold: Gold | None = None if gold is None else read_gold(gold)
        self.gold_first = gold_first

    @property
    def options(self) -> dict[str, Any]:
        given: dict[str, Any] = {
            "scopes": list(self.scopes),
            "layers": self.layers,
            "ways": list(self.ways),
            "head": self.head,
        }
        if self.gold is not None:
            # Another gold file under the same name would be another run.
            given |= {"gold": self.gold.digest, "gold_first": self.gold_first}
        return given

    def bind(self, lens: Lens, batch_size: int | str) -> BoundMeasure:
        chosen = choose(lens, self.scopes, self.layers, self.ways, self.head)
        if any("FF" in components_of(scope) for scope in chosen.scopes.values()):
            lens = copy.copy(lens).prepare()
        return _Alignment(self, lens, chosen, batch_size)

    def gold_of(self, item: Item, lengths: tuple[int, int]) -> GoldLinks | None:
        """The gold links of a sentence pair of so many words, from 0; None without a gold file."""
        if self.gold is None:
            return None
        if getattr(item.encoded, "generated", None) is not None:
            raise InputError("gold links are of a given target; this one was generated")
        if item.index >= len(self.gold):
            raise InputError(f"{self.gold.path!r} has no line for it, only {len(self.gold)}")
        line = self.gold.lines[item.index]
        if not line.fits(self.gold_first, lengths):
            raise InputError("its gold links are of words that it does not have")
        return line.counted_from(self.gold_first)


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
                for place, maps in enumerate(self._maps(encoded)):
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

    def _maps(self, pairs: Sequence[Encoded]) -> list[Maps]:
        options = AnalysisOptions(
            scopes=list(self.chosen.scopes.values()),
            layers=self.chosen.layers,
            heads=bool(self.chosen.heads),
            batch_size=self.batch_size if self.batch_size == "auto" else int(self.batch_size),
        )
        return self.lens.analyse(pairs, options)

    def _of_maps(self, maps: Maps, sources: int) -> Iterator[Reading]:
        """The columns of the encoder of every map that is asked for."""
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
            places = WordPlaces.of(encoded.source, encoded)
            gold = self.measure.gold_of(item, (len(places.columns), len(places.tokens)))
        except InputError as error:
            return str(error)
        whose = {"index": item.index, "sequence": item.sequence}
        rows = [
            {
                **whose,
                "layer": layer,
                "scope": read.scope,
                "way": way,
                "head": read.head,
                **_counted(links, gold),
            }
            for read in readings
            for way in read.ways
            for layer, links in zip(read.layers, places.links(read.scores, way), strict=True)
        ]
        texts = {**whose, **_texts(encoded, gold), "completeness": completeness}
        return {
            "alignment": pa.Table.from_pylist(rows, schema=ALIGNMENT),
            "alignment_texts": pa.Table.from_pylist([texts], schema=TEXTS),
        }


def _counted(links: list[Link], gold: GoldLinks | None) -> dict[str, Any]:
    written = {"alignment": pharaoh(links)}
    if gold is None:
        return {**written, **dict.fromkeys(COUNTS), "links": len(links)}
    counts = count_links(links, gold.sure, gold.possible)
    return {**written, **{name: getattr(counts, name) for name in COUNTS}}


def _texts(encoded: Any, gold: GoldLinks | None) -> dict[str, Any]:
    return {
        "source": " ".join(encoded.source.word_labels),
        "target": " ".join(encoded.word_labels),
        "generated": encoded.generated is not None,
        "gold_sure": None if gold is None else pharaoh(sorted(gold.sure)),
        "gold_possible": None if gold is None else pharaoh(sorted(gold.possible)),
    }
