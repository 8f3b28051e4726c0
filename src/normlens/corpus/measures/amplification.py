"""Rows of FF-amp: sums per pair of subwords, sums per distance, and a sample of pairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from normlens import scopes
from normlens.corpus.measures import tokens
from normlens.corpus.measures.base import (
    CROSS,
    EXACT,
    FLAG,
    INT,
    LABEL,
    LONG,
    REAL,
    STACK,
    WHOSE,
    Item,
    Needs,
    RowParts,
    Table,
    TableMeasure,
    alike,
    at_layers,
    check_square,
    codes,
    count,
    encoder_item,
    quoted,
    schema_of,
    total,
    whose,
)
from normlens.corpus.measures.tokens import (
    RELATIONS,
    Groups,
    KeptPairs,
    Relation,
    ScopePair,
    TokenPairs,
)
from normlens.corpus.measures.user_code import called, check_names, imported
from normlens.errors import InputError, require, valid_choice
from normlens.measures.maps import AXES, normalise
from normlens.results.maps import Maps

# The tables of FF-amp: their columns, their order, and how blocks become one table.


PAIRS, DISTANCE, SAMPLE = "amplification_pairs", "amplification_distance", "amplification_sample"
_SCOPES = schema_of(before=LABEL, after=LABEL, layer=INT, relation=LABEL)  # layers from 0
#: What a pair of subwords is counted by, whatever the relations of its occurrences.
_PAIR = ("before", "after", "layer", "source_id", "target_id")
TABLES = {
    PAIRS: Table(
        schema_of(
            STACK, *_SCOPES, source_id=INT, target_id=INT, source_token=LABEL, target_token=LABEL,
            count=LONG, sum_before=EXACT, sum_after=EXACT, sum_distance=LONG,
        ),
        ("stack", *_SCOPES.names, "source_id", "target_id"),
        {
            "count": count(),
            "sum": "CAST(sum(sum_after) - sum(sum_before) AS DOUBLE)",
            "sum_before": total("sum_before"),
            "sum_after": total("sum_after"),
            "sum_distance": count("sum_distance"),
        },
    ),
    DISTANCE: Table(
        schema_of(
            *WHOSE, STACK, *_SCOPES, same_subword=FLAG, distance=INT, count=LONG, sum=REAL,
            sum_squares=REAL,
        ),
        ("index", "stack", *_SCOPES.names, "same_subword", "distance"),
    ),
    SAMPLE: Table(
        schema_of(
            STACK, *_SCOPES, same_subword=FLAG, distance=INT, index=LONG, sequence=LABEL,
            target=INT, source=INT, score=REAL, priority=pa.uint64(),
        ),
        ("stack", *_SCOPES.names, "priority", "index", "target", "source"),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Amplification(TableMeasure):
    """FF-amp: ``after − before`` of every pair i ≠ j, each source's column summing to 1 in both.

    Kobayashi et al. 2024, section 5 and footnote 6. `pairs` are (before, after) scopes (by default
    those around the feed-forward block and around it with its residual and norms); `axis` is what
    sums to 1 (diagonal included): "source", "target" or "none". Pairs of one subword type and pairs
    with a special token count unless excluded. ``sum / count`` of a pair of subwords, over its
    relations in amplification_pairs, is amp(w_j, w_i); amplification_distance keeps every
    sequence's sums, so that sequences can be resampled; the sample keeps `keep` pairs per layer of
    each relation in `tokens.RELATIONS`, and `keep_other` per distance of unrelated pairs and of
    pairs with a special token. Without `subwords`, amplification_pairs, by far the largest of the
    tables, stays empty. A run keeps pairs of subwords there that occur at least `min_count` times
    in the corpus, and about `keep_pairs` of them, the commonest (None: all); the run itself finds
    out which (`kept`) and how often each of them occurs at `least`. The sums of pairs that are kept
    are exact. `relations` are a user's own, written ``my_module:my_relation``: functions of an
    `Item` that give (n, n) booleans. Of an encoder–decoder there are pairs of each stack's own
    tokens and, as the stack "cross", of the encoder's and the decoder's, which have no distance.
    """

    pairs: tuple[ScopePair, ...] | None = None
    axis: str = "source"
    exclude_same_type: bool = False
    exclude_special: bool = False
    keep: int = 20_000
    keep_other: int = 2_000
    relations: tuple[str, ...] = ()
    subwords: bool = True
    min_count: int = 2
    keep_pairs: int | None = 100_000
    least: int | None = None
    kept: KeptPairs | None = field(default=None, compare=False, repr=False)

    name = "amplification"
    declared = TABLES

    def __post_init__(self) -> None:
        valid_choice(self.axis, AXES, "axis")
        least = min(self.keep, self.keep_other)
        require(least >= 1, f"a sample keeps at least 1 pair, not {least}")
        if self.min_count < 1 or (self.keep_pairs is not None and self.keep_pairs < 1):
            raise InputError(
                f"min_count and keep_pairs are at least 1, not {self.min_count} and "
                f"{self.keep_pairs}; keep_pairs=null keeps all that occur often enough"
            )
        relations, pairs = self.relations, self.pairs
        if isinstance(relations, str):  # as on a command line
            relations = tuple(relations.split(","))
        if isinstance(pairs, str):  # "LN1:FF,RES1:LN2"
            pairs = tuple(tuple(pair.split(":")) for pair in pairs.split(","))
        check_names(tuple(relations))
        object.__setattr__(self, "relations", tuple(relations))
        if pairs is not None:
            if not pairs or any(len(pair) != 2 for pair in pairs):
                raise InputError(
                    f"pairs are (before, after) scopes such as ('LN1', 'FF'), not {pairs!r}"
                )
            pairs = tuple((str(before), str(after)) for before, after in pairs)
            object.__setattr__(self, "pairs", pairs)

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        named = [scope for pair in self.pairs or () for scope in pair]
        # A short name (LN1) means what it means only among all of the model's scopes, and a scope
        # may be of one stack alone.
        is_short = any(scope != scope.upper() or "-" not in scope for scope in named)
        if not named or is_short or self.two_stacks:
            return Needs()
        return Needs(tuple(dict.fromkeys(named)))

    @property
    def options(self) -> dict[str, Any]:
        pairs = None if self.pairs is None else [list(pair) for pair in self.pairs]
        given = {item.name: getattr(self, item.name) for item in fields(self)}
        given |= {"pairs": pairs, "relations": list(self.relations)}
        del given["kept"]
        return given

    @property
    def _user_relations(self) -> dict[str, Relation]:
        return {called(name): imported(name, "relation") for name in self.relations}

    @property
    def _stack(self) -> tuple[str, ...]:
        return ("stack",) if self.two_stacks else ()

    @property
    def sql(self) -> Mapping[str, str]:  # type: ignore[override]
        """Merge the blocks' sums, and their samples by the sizes of the strata.

        Pairs of subwords that occur less often than `least` times, in all relations together, are
        left out.
        """
        pair = quoted((*self._stack, *_PAIR))
        stratum = quoted((*self._stack, *_SCOPES.names))
        often = f'QUALIFY sum(sum("count")) OVER (PARTITION BY {pair}) >= {self.least}'
        return {
            PAIRS: self._tables[PAIRS].sql("" if self.least is None else often),
            SAMPLE: (
                # Whatever columns there are: an older run has fewer.
                "SELECT * FROM parts QUALIFY row_number() OVER ("
                f"PARTITION BY {stratum}, {tokens.strata_sql()} "
                'ORDER BY priority, "index", target, source) '
                f"<= CASE WHEN relation IN {tokens.UNRELATED} THEN {self.keep_other} "
                f"ELSE {self.keep} END ORDER BY {quoted(self.order[SAMPLE])}"
            ),
        }

    def parts(self, item: Item) -> Iterator[dict[str, pa.Table]]:
        """Sum the pairs of one text by subwords and by distance; draw sample candidates.

        Of an encoder–decoder, the pairs of each stack's tokens, and those of the encoder's and the
        decoder's together. Only scopes that hold parts of a group of sources have rows of it.
        """
        if not self.two_stacks:
            check_square(item, self.name)
        if item.maps.encoder is not None:
            yield from self.parts(encoder_item(item))
        named = self._scope_pairs(item.maps)
        own = TokenPairs(item, self._user_relations)
        if item.source is None:
            yield self._rows(item, own, named, slice(None))
            return
        first = len(item.source)
        for place, one, columns, pairs in (
            (0, item, slice(first, None), own),
            (1, replace(item, stack=CROSS), slice(0, first), TokenPairs(item, across=True)),
        ):
            here = [pair for pair in named if all(scopes.holds(scope)[place] for scope in pair)]
            yield self._rows(one, pairs, here, columns)

    def _rows(
        self, item: Item, pairs: TokenPairs, named: Sequence[ScopePair], columns: slice
    ) -> dict[str, pa.Table]:
        """The rows of some of a map's columns, whose tokens are the sources of `pairs`."""
        maps = item.maps
        counted = pairs.counted(self.exclude_same_type, self.exclude_special)
        parts = {name: RowParts() for name in TABLES}
        for group in alike(maps):
            layers = np.array(maps.layers, np.int64)[group]
            at = np.flatnonzero(counted & maps.allowed[group[0]][:, columns].ravel())
            often = self._often(item, pairs, at)
            kept = at[often]
            distance = np.broadcast_to(pairs.distance[kept].astype(float), (len(group), len(kept)))
            by_type = Groups(
                relation=pairs.relation[kept],
                source_token=pairs.source_type[kept],
                target_token=pairs.target_type[kept],
            )
            by_distance = Groups(
                relation=pairs.relation[at],
                same_subword=pairs.same_subword[at],
                distance=pairs.distance[at],
            )
            # The same pairs under all scopes, so that their scores can be compared.
            chosen, priority = self._drawn(item, pairs, layers, at)
            place, pair = np.divmod(chosen, max(len(at), 1))
            drawn = {
                name: getattr(pairs, name)[at[pair]]
                for name in ("relation", "same_subword", "distance", "target", "source")
            }
            drawn |= {"layer": layers[place], "priority": priority}
            for code, scope_pair in enumerate(named):
                if layers[0] not in maps.layers_of(*scope_pair):
                    continue  # these layers have other components
                before, after = (
                    normalise(at_layers(maps, scope, group).astype(np.float64), self.axis)[
                        ..., columns
                    ].reshape(len(group), -1)[:, at]
                    for scope in scope_pair
                )
                score = after - before
                found = {
                    DISTANCE: by_distance.sums(layers, sum=score, sum_squares=score * score),
                    SAMPLE: {**drawn, "score": score.ravel()[chosen]},
                }
                if self.subwords:
                    sums = by_type.sums(
                        layers,
                        sum_before=before[:, often],
                        sum_after=after[:, often],
                        sum_distance=distance,
                    )
                    sums["source_id"] = pairs.sources.ids[sums["source_token"]]
                    sums["target_id"] = pairs.targets.ids[sums["target_token"]]
                    found[PAIRS] = sums
                for name, part in found.items():
                    parts[name].add(before=code, after=code, **part)
        labels: dict[str, Sequence[str]] = {
            "before": [before for before, _ in named],
            "after": [after for _, after in named],
            "source_token": pairs.sources.tokens,
            "target_token": pairs.targets.tokens,
            "relation": self._relations,
            "sequence": [item.sequence],
        }
        shared = {**whose(item), "sequence": 0}
        if pairs.across:
            shared |= {"distance": np.nan, "sum_distance": np.nan}
        made = {name: rows.columns() for name, rows in parts.items()}
        return {
            name: self.build(name, columns and columns | shared, labels)
            for name, columns in made.items()
        }

    def combine(self, table: str, parts: pa.Table) -> pa.Table:
        """Sum equal keys, keep each sequence's rows, or keep each stratum's lowest priorities."""
        return self._combined_sample(parts) if table == SAMPLE else super().combine(table, parts)

    def _drawn(
        self, item: Item, pairs: TokenPairs, layers: NDArray[np.int64], at: NDArray[np.intp]
    ) -> tuple[NDArray[np.intp], NDArray[np.uint64]]:
        """Choose pairs that a sample may hold, as places in (layers, at), with their priorities."""
        priority = tokens.priorities(
            item.seed, item.sequence, layers[:, None], pairs.target[at], pairs.source[at]
        )
        stratum = tokens.strata(pairs.relation[at], pairs.distance[at], self._relations)
        kept = [tokens.lowest(row, stratum, self._limits) for row in priority]
        chosen = np.concatenate([place * len(at) + row for place, row in enumerate(kept)])
        return chosen, priority.ravel()[chosen]

    def _combined_sample(self, parts: pa.Table) -> pa.Table:
        """Keep each stratum's lowest priorities."""
        distance = parts["distance"].fill_null(0).to_numpy()  # null: of another sequence
        relation = codes(parts["relation"], self._relations)
        stratum = tokens.strata(relation, distance, self._relations)
        names = (*self._stack, "before", "after", "layer")
        axes = (*(codes(parts[name]) for name in names), stratum)
        group = np.ravel_multi_index(axes, [int(axis.max(initial=0)) + 1 for axis in axes])
        keys = (parts[name].to_numpy() for name in ("priority", "index", "target", "source"))
        kept = tokens.lowest_in_groups(group, self._limits[stratum], *keys)
        return parts.take(kept).unify_dictionaries()

    @property
    def _limits(self) -> NDArray[np.int64]:
        return tokens.limits(self.keep, self.keep_other, self._relations)

    def _often(
        self, item: Item, pairs: TokenPairs, at: NDArray[np.intp]
    ) -> slice | NDArray[np.bool_]:
        """Which of the pairs `at` are of subwords that the corpus has often enough."""
        if self.kept is None:
            return slice(None)
        sources, targets = pairs.ids(at)
        if not self.kept.saw(sources, targets):
            raise InputError(
                f"{item.sequence!r} has pairs of subwords that were not there when the run counted "
                "them: its data or its tokenizer has changed; start the run again"
            )
        return self.kept.holds(sources, targets)

    @property
    def _relations(self) -> tuple[str, ...]:
        return (*RELATIONS, *map(called, self.relations))

    def _scope_pairs(self, maps: Maps) -> list[ScopePair]:
        if self.pairs is None:
            return tokens.default_pairs(maps.scopes)
        named = [
            (scopes.resolve(before, maps.scopes), scopes.resolve(after, maps.scopes))
            for before, after in self.pairs
            if not tokens.of_other_stack((before, after), maps)
        ]
        return list(dict.fromkeys(named))
