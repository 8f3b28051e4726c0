"""Small sequences to measure, and blocks of them as a run makes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import normlens
from normlens.corpus.measures import Item, Measure
from normlens.inputs.text import Encoded
from normlens.models.tiny import tiny_model
from normlens.options import AnalysisOptions
from normlens.results.explanation import Explanation
from normlens.results.maps import Maps

SCOPES = [
    "ATTN-W",
    "ATTNRES-W",
    "ATTN-N",
    "ATTNRES-N",
    "ATTNRESLN-N",
    "ATTNRESLNFF-N",
    "ATTNRESLNFFRES-N",
    "ATTNRESLNFFRESLN-N",
]
D_MODEL = 5


@dataclass(frozen=True)
class Record(Encoded):
    """What the corpus layer adds to an encoded text."""

    entities: list[int | None] = field(default_factory=list)
    masked: list[bool] = field(default_factory=list)


def record(rng: np.random.Generator, n: int) -> Record:
    """[CLS], words of one to three subwords, some in entities, a mask, and [SEP]."""
    ids = [1, *rng.integers(4, 9, size=n - 2).tolist(), 2]
    words = [None, *np.sort(rng.integers(0, max(1, n // 2), size=n - 2)).tolist(), None]
    entities = [None if w is None or w % 3 == 0 else w // 4 for w in words]
    masked = [3 < place < 5 and n > 6 for place in range(n)]
    ids = [3 if hidden else token for token, hidden in zip(ids, masked, strict=True)]
    names = {1: "[CLS]", 2: "[SEP]", 3: "[MASK]"}
    return Record(
        ids=ids,
        tokens=[names.get(token, f"t{token}") for token in ids],
        special=[True, *[False] * (n - 2), True],
        words=words,
        entities=entities,
        masked=masked,
    )


def item(index: int, n: int = 9, *, causal: bool = False, layers: int = 2, seed: int = 0) -> Item:
    """Random maps, with ties, of a sequence of n tokens."""
    rng = np.random.default_rng(index)
    allowed = np.tril(np.ones((n, n), bool)) if causal else np.ones((n, n), bool)
    allowed = np.stack([allowed] * layers)
    if causal:
        allowed[1] &= ~np.tril(np.ones((n, n), bool), -4)  # a window
    arrays = {s: (rng.integers(0, 40, (layers, n, n)) / 8 * allowed) for s in SCOPES}
    encoded = record(rng, n)
    statistics = {
        "ff_output_norm": rng.random((layers, n)),
        "bypassed_norm": rng.random((layers, n)),
        "ff_input_mean_abs": rng.random((layers, D_MODEL)),
        "ff_output_mean_abs": rng.random((layers, D_MODEL)),
        "gamma": np.arange(layers * D_MODEL).reshape(layers, D_MODEL)[:, ::-1] / 7,
        "special_dimensions": np.full((layers, 1), D_MODEL - 1),
        "ff_without_special": rng.random((layers, n, n)) * allowed,
    }
    maps = Maps(
        arrays={scope: a.astype(np.float32) for scope, a in arrays.items()},
        raw_tokens=encoded.tokens,
        layers=list(range(layers)),
        allowed=allowed,
        completeness=0.0,
        mixing={scope: rng.random((layers, n)).astype(np.float32) for scope in SCOPES},
        heads={
            scope: (rng.random((layers, 3, n, n)) * allowed[:, None]).astype(np.float32)
            for scope in ("ATTN-W", "ATTN-N")
        },
        statistics={name: a.astype(np.float32) for name, a in statistics.items()}
        | {"special_dimensions": statistics["special_dimensions"]},
        token_ids=encoded.ids,
        special=encoded.special,
        token_words=encoded.words,
    )
    return Item(f"text-{index}", index, maps, encoded, seed, (explanation(rng, encoded, layers),))


def explanation(rng: np.random.Generator, encoded: Encoded, layers: int) -> Explanation:
    """A random explanation of a sequence; its first layer lacks a feed-forward block."""
    n = len(encoded)
    components = rng.random((layers, 2, n))
    components[0, 1] = np.nan
    biases = [*((layer, "FF", rng.random()) for layer in range(layers)), ("head", "OUT", 0.5)]
    nodes = rng.random((layers, n))
    return Explanation(
        task="causal language model",
        value=float(nodes[0].sum()) + sum(share for *_, share in biases),
        nodes=nodes,
        components=components,
        component_names=["ATTN", "FF"],
        heads=rng.random((layers, 3, n)),
        biases=biases,
        flows={},
        raw_tokens=encoded.tokens,
        completeness=1e-7,
        provenance={},
        position=n - 1,
        target="t",
        target_id=5,
        probability=0.25,
        token_ids=encoded.ids,
        special=encoded.special,
    )


@lru_cache
def real_item(family: str, index: int = 0, n: int = 8) -> Item:
    """Maps of a tiny real model."""
    lens = normlens.load(tiny_model(family))
    encoded = record(np.random.default_rng(index), n)
    [maps] = lens.analyse([encoded], AnalysisOptions(statistics=True))
    return Item(f"text-{index}", index, maps, encoded, 0)


def blocks(measure: Measure, table: str, items: list[Item], cuts: list[int]) -> list[pa.Table]:
    """The table's part in each block; a block begins at each cut."""
    return cut_rows(measure, table, [measure.rows(one)[table] for one in items], cuts)


def cut_rows(measure: Measure, table: str, rows: list[pa.Table], cuts: list[int]) -> list[pa.Table]:
    """The same from the sequences' rows; a block may be empty."""
    empty = measure.tables[table].empty_table()
    return [
        measure.combine(table, pa.concat_tables([empty, *rows[first:last]]))
        for first, last in pairwise([0, *sorted(cuts), len(rows)])
    ]


def final(measure: Measure, table: str, parts: list[pa.Table], folder: Path) -> pa.Table:
    """The table of a whole run: parts written as a run writes them, and what SQL makes of them."""
    for number, part in enumerate(parts):
        assert part.schema == measure.tables[table]
        pq.write_table(part.unify_dictionaries().combine_chunks(), folder / f"{number}.parquet")
    with duckdb.connect() as connection:
        connection.execute("SET threads = 2")
        connection.execute(f"CREATE VIEW parts AS SELECT * FROM read_parquet('{folder}/*.parquet')")
        order = ", ".join(f'"{name}"' for name in measure.order[table])
        sql = measure.sql.get(table, f"SELECT * FROM parts ORDER BY {order}")
        result = connection.sql(sql).to_arrow_table()
    for path in folder.glob("*.parquet"):
        path.unlink()
    return result
