"""Which pairs of subwords a corpus has often enough, by a sketch that never counts too little."""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from measure_examples import cut_rows, final, item

from normlens.corpus import measures
from normlens.corpus.measures import tokens as pair_counts
from normlens.corpus.measures.tokens import PairCounter
from normlens.errors import InputError

PAIRS = "amplification_pairs"
ITEMS = [item(index, n=5 + index % 4) for index in range(12)]
CAUSAL = [item(index, n=5 + index % 4, causal=True) for index in range(12)]


def exact(items, causal=False) -> Counter:
    """Every ordered pair (source, target), counted one by one."""
    return Counter(
        (source, target)
        for one in items
        for i, target in enumerate(one.encoded.ids)
        for j, source in enumerate(one.encoded.ids)
        if (j < i if causal else j != i)
    )


def counter(items, causal=False) -> PairCounter:
    made = PairCounter(causal)
    for one in items:
        made.add(one.encoded.ids)
    return made


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("least", [1, 2, 3, 7])
def test_what_is_kept_is_what_occurs_often_enough(causal, least):
    counts = exact(ITEMS, causal)
    kept = counter(ITEMS, causal).kept(least, None)
    assert kept.least == least
    pairs = np.array([(a, b) for a in range(1, 12) for b in range(1, 12)])
    holds = kept.holds(pairs[:, 0], pairs[:, 1])
    assert [bool(held) for held in holds] == [counts[a, b] >= least for a, b in map(tuple, pairs)]


def test_a_bound_keeps_the_commonest():
    counts = exact(ITEMS)
    for bound in (1, 5, 20):
        least = counter(ITEMS).kept(1, bound).least
        assert sum(count >= least for count in counts.values()) <= bound
        assert sum(count >= least - 1 for count in counts.values()) > bound
    assert counter(ITEMS).kept(2, 10**6).least == 2


def test_a_crowded_sketch_counts_too_much_and_never_too_little(monkeypatch):
    monkeypatch.setattr(pair_counts, "_BITS", 6)
    monkeypatch.setattr(pair_counts, "_SIZE", 64)
    rng = np.random.default_rng(0)
    made = PairCounter(False)
    counts: Counter = Counter()
    for _ in range(20):
        ids = rng.integers(0, 40, 9).tolist()
        made.add(ids)
        counts.update((a, b) for i, b in enumerate(ids) for j, a in enumerate(ids) if i != j)
    kept = made.kept(3, None)
    often = np.array([pair for pair, count in counts.items() if count >= 3])
    assert kept.holds(often[:, 0], often[:, 1]).all()
    assert kept.saw(often[:, 0], often[:, 1])


def test_counters_do_not_begin_anew(monkeypatch):
    monkeypatch.setattr(pair_counts, "_MOST", np.uint32(5))
    assert counter(ITEMS * 3).kept(1, 1).least == 6  # none is above the most


@pytest.mark.parametrize("cuts", [[], [1], [6], [2, 3, 9]])
@pytest.mark.parametrize(("items", "causal"), [(ITEMS, False), (CAUSAL, True)])
def test_sums_of_pairs_that_are_kept_are_exact_whatever_the_blocks(items, causal, cuts, tmp_path):
    """Rarer ones are in no block, or are left out when the blocks are merged."""
    least = 9
    whole = measures.get("amplification")
    kept = counter(items, causal).kept(least, None)
    told = replace(whole, least=least, kept=kept)
    rows = [whole.rows(one)[PAIRS] for one in items]
    everything = final(whole, PAIRS, cut_rows(whole, PAIRS, rows, []), tmp_path).to_pandas()
    pair = ["before", "after", "layer", "source_id", "target_id"]
    total = everything.groupby(pair, observed=True)["count"].transform("sum")
    expected = everything[total >= least].reset_index(drop=True)
    assert 0 < len(expected) < len(everything)
    parts = cut_rows(told, PAIRS, [told.rows(one)[PAIRS] for one in items], cuts)
    assert sum(part.num_rows for part in parts) < sum(part.num_rows for part in rows)
    found = final(told, PAIRS, parts, tmp_path).to_pandas()
    for name in expected.columns:
        assert found[name].tolist() == expected[name].tolist(), name
    for table in ("amplification_distance", "amplification_sample"):
        assert told.rows(items[0])[table].equals(whole.rows(items[0])[table])


def test_a_sequence_that_was_not_counted_is_refused():
    told = replace(measures.get("amplification"), least=2, kept=counter(ITEMS[:1]).kept(2, None))
    other = item(0)
    changed = replace(other, encoded=replace(other.encoded, ids=[99, *other.encoded.ids[1:]]))
    told.rows(ITEMS[0])
    with pytest.raises(InputError):
        told.rows(changed)


def test_options_are_recorded_once_pairs_are_left_out():
    alone = measures.get("amplification")
    assert alone.options["least"] is None
    assert "kept" not in alone.options
    told = replace(alone, least=4, kept=counter(ITEMS).kept(4, None))
    recorded = {"min_count": 2, "keep_pairs": 100_000, "least": 4}
    assert recorded.items() <= told.options.items()
    again = measures.get("amplification", **told.options)
    assert again.sql == told.sql
    assert again.sql != alone.sql
    sent = pickle.loads(pickle.dumps(told))
    assert sent.rows(ITEMS[0])[PAIRS].equals(told.rows(ITEMS[0])[PAIRS])
