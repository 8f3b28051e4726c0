from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import run_examples as examples

from normlens.corpus import run
from normlens.experiments import published
from normlens.experiments.base import Evidence, Result
from normlens.experiments.published import Published
from normlens.experiments.relation_figures import histogram
from normlens.experiments.relations import EXPERIMENTS
from normlens.experiments.settings import Settings

duckdb = pytest.importorskip("duckdb", reason="reading tables needs DuckDB")

POST = ["ATTN-W", "ATTN-N", "ATTNRES-N", "ATTNRESLN-N", "ATTNRESLNFF-N", "ATTNRESLNFFRES-N"]
POST += ["ATTNRESLNFFRESLN-N"]
FF = ("ATTNRESLN-N", "ATTNRESLNFF-N")
LAYER = ("ATTNRES-N", "ATTNRESLNFFRESLN-N")


@dataclass
class FrameRun:
    """A run whose tables are frames."""

    frames: dict[str, pd.DataFrame]
    scopes: list[str] = field(default_factory=lambda: POST)

    @property
    def manifest(self) -> Any:
        return SimpleNamespace(model={"name": "tiny", "scopes": self.scopes, "layers": 4})

    @property
    def tables(self) -> list[str]:
        return list(self.frames)

    def sql(self, query: str) -> pd.DataFrame:
        with duckdb.connect(":memory:") as connection:
            for name, frame in self.frames.items():
                connection.register(name, frame)
            return connection.sql(query).df()


def evidence(run: Any, **settings: Any) -> Evidence:
    asked = Settings(("ff",), "tiny", ("here",), **{"resamples": 400, **settings})
    return Evidence(asked, "here", run)


def work(run: Any, **settings: Any) -> Result:
    found = EXPERIMENTS[0].work(evidence(run, **settings))
    assert found is not None
    return found


def pairs_frame(
    shifts: dict[str, list[float]],
    counts: dict[str, int],
    scope_pairs: tuple[tuple[str, str], ...] = (FF, LAYER),
    reach: dict[str, int] | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Pairs with scores 0.1 · distance + noise, plus each relation's shift of each layer."""
    chance = np.random.default_rng(seed)
    parts = []
    layers = len(next(iter(shifts.values())))
    for layer in range(layers):
        for relation, count in counts.items():
            farthest = (reach or {}).get(relation, 20)
            distance = chance.integers(1, farthest + 1, count)
            drawn = {
                "layer": layer,
                "relation": relation,
                "distance": distance,
                "index": np.arange(count),
                "target": distance,
                "source": 0,
                "priority": chance.integers(2**63, size=count, dtype=np.uint64),
            }
            for before, after in scope_pairs:
                score = 0.1 * distance + chance.normal(size=count)
                score += shifts.get(relation, [0.0] * layers)[layer]
                parts.append(pd.DataFrame({"before": before, "after": after, **drawn}))
                parts[-1]["score"] = score
    return pd.concat(parts, ignore_index=True)


def run_of(pairs: pd.DataFrame, scopes: list[str] = POST) -> FrameRun:
    keys = ["before", "after", "layer", "relation", "distance"]
    sums = pairs.assign(square=pairs["score"] ** 2).groupby(keys)
    distance = sums.agg(
        count=("score", "size"), sum=("score", "sum"), sum_squares=("square", "sum")
    ).reset_index()
    return FrameRun(
        {"amplification_sample": pairs, "amplification_distance": distance}, list(scopes)
    )


PLANTED = {"same_word": [0.0, 0.6, 0.7, -0.5], "same_type": [0.0] * 4}
COUNTS = {"same_word": 400, "same_type": 300, "other": 6_000, "special": 500}


@pytest.fixture(scope="module")
def planted_run() -> FrameRun:
    return run_of(pairs_frame(PLANTED, COUNTS))


@pytest.fixture(scope="module")
def planted(planted_run: FrameRun) -> Result:
    return work(planted_run)


def test_planted_layers_are_the_significant_ones(planted: Result) -> None:
    frame = planted.tables["relations-ff-same_word"].frame
    assert frame["layer"].tolist() == [1, 2, 3, 4]
    assert frame["significant"].tolist() == [False, True, True, True]
    assert (frame["g"].iloc[1:3] > 0.3).all()
    assert frame["g"].iloc[3] < -0.2
    same_type = planted.tables["relations-ff-same_type"].frame
    assert not same_type["significant"].any()
    assert (same_type["p adjusted"] >= same_type["p"]).all()


def test_sentences_name_the_layers_and_the_direction(planted: Result) -> None:
    word, same_type, adjacent, layer = planted.sentences
    assert word.startswith("FF-amp of word-split pairs")
    assert "higher in layers 2–3 and lower in layer 4 (p < 0.05" in word
    assert "Benjamini–Hochberg over 4 layers" in word
    frame = planted.tables["relations-ff-same_word"].frame.set_index("layer")
    largest = frame["g"].abs().idxmax()
    assert f"largest in layer {largest} (mean {frame['mean'][largest]:.4f}" in word
    assert same_type.startswith("In no layer does FF-amp of same-subword pairs differ")
    assert "of pairs further apart, is significantly lower in layers 1–4" in adjacent
    assert layer.startswith("Amplification by LN1, FF, RES2 and LN2 together")
    assert "of word-split pairs it is higher in layers 2–3 and lower in layer 4" in layer
    assert "of same-subword pairs no layer differs" in layer


def test_means_over_all_pairs_are_matched_exactly(planted_run: FrameRun, planted: Result) -> None:
    pairs = planted_run.frames["amplification_sample"]
    frame = planted.tables["relations-layer-same_word"].frame.set_index("layer")
    here = pairs[(pairs["before"] == LAYER[0]) & (pairs["layer"] == 1)]
    target = here[here["relation"] == "same_word"]
    others = here[here["relation"] == "other"]
    expected = [
        others.loc[others["distance"] == distance, "score"].mean()
        for distance in target["distance"]
    ]
    assert frame.loc[2, "pairs"] == len(target)
    assert frame.loc[2, "mean of all"] == pytest.approx(target["score"].mean())
    assert frame.loc[2, "others of all"] == pytest.approx(np.mean(expected))
    low, high = frame.loc[2, ["others low", "others high"]]
    assert low < np.mean(expected) < high


def test_adjacent_pairs_stand_beside_pairs_further_apart(
    planted_run: FrameRun, planted: Result
) -> None:
    pairs = planted_run.frames["amplification_sample"]
    here = pairs[(pairs["before"] == FF[0]) & (pairs["relation"] == "other")]
    here = here[here["layer"] == 0]
    near = here["distance"] == 1
    row = planted.tables["relations-ff-adjacent"].frame.iloc[0]
    assert row["pairs"] == near.sum()
    assert row["mean of all"] == pytest.approx(here.loc[near, "score"].mean())
    assert row["others of all"] == pytest.approx(here.loc[~near, "score"].mean())
    assert row["others"] == pytest.approx(here.loc[~near, "score"].mean(), abs=0.2)
    assert "cannot be matched by distance" in planted.tables["relations-ff-adjacent"].caption


def test_matching_removes_what_distance_alone_would_explain() -> None:
    """Scores grow with the distance and near pairs are related: unmatched, all would differ."""
    pairs = pairs_frame({"same_word": [0.0] * 6}, COUNTS, reach={"same_word": 3}, seed=2)
    frame = work(run_of(pairs)).tables["relations-ff-same_word"].frame
    scores = pairs[pairs["before"] == FF[0]].groupby("relation")["score"].mean()
    assert scores["other"] - scores["same_word"] > 0.7
    assert frame["difference"].abs().max() < 0.3
    assert not frame["significant"].any()


def test_shuffled_relations_are_seldom_significant() -> None:
    """40 layers without any effect: by the paper's criterion 5 % of them, adjusted none."""
    pairs = pairs_frame(
        {"same_word": [0.0] * 40}, {"same_word": 100, "other": 1_500}, (FF,), seed=3
    )
    frame = work(run_of(pairs)).tables["relations-ff-same_word"].frame
    assert (frame["p"] < 0.05).sum() <= 7  # 99.9 % of the binomial distribution
    assert frame["p"].nunique() > 20
    assert not frame["significant"].any()


def test_pairs_at_distances_without_others_are_left_out_and_counted() -> None:
    pairs = pairs_frame(PLANTED, COUNTS, reach={"same_word": 20, "other": 10})
    found = work(run_of(pairs)).tables["relations-ff-same_word"]
    target = pairs[(pairs["before"] == FF[0]) & (pairs["relation"] == "same_word")]
    alone = target[target["distance"] > 10].groupby("layer").size()
    assert (found.frame["pairs"] == 400 - alone.to_numpy()).all()
    assert f"Left out: {alone.max()} pairs per layer" in found.caption


def test_a_table_is_ready_to_print(planted: Result) -> None:
    text = planted.tables["relations-ff-same_word"].text()
    assert text["significant"].tolist() == ["no", "yes", "yes", "yes"]
    assert text["difference"].iloc[3].startswith("−0.")
    assert not text.isin(["–"]).any().any()


def test_the_run_gives_the_same_numbers_again(planted_run: FrameRun, planted: Result) -> None:
    shuffled = {
        name: frame.sample(frac=1, random_state=1) for name, frame in planted_run.frames.items()
    }
    again = work(FrameRun(shuffled))
    for name, table in planted.tables.items():
        pd.testing.assert_frame_equal(table.frame, again.tables[name].frame)


def test_published_layers_stand_beside_the_measured_ones(
    planted_run: FrameRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = tuple(
        Published(
            key=f"significance/{key}",
            label=key,
            value=1.0,
            model="owner/tiny",
            data="here",
            data_label=None,
            source="a paper",
        )
        for key in (
            "same_word/layer-1",
            "same_word/layer-2",
            "same_word/layer-4",
            "same_entity/layer-1",
        )
    )
    monkeypatch.setattr(published, "published", lambda: entries)
    found = work(planted_run).comparisons
    assert [entry.measured for entry in found] == [0.0, 1.0, 0.0, None]  # layer 4: lower
    assert all(entry.same for entry in found)


def test_summary_is_of_the_feed_forward_block(planted: Result) -> None:
    share = "share of layers where FF-amp of word-split pairs is significantly higher"
    assert planted.summary[share] == 0.5
    frame = planted.tables["relations-ff-same_word"].frame
    strongest = planted.summary["largest effect (g) of FF-amp, word-split pairs"]
    assert abs(strongest) == frame["g"].abs().max()


def test_entities_and_own_relations_have_their_tables() -> None:
    counts = COUNTS | {"same_entity": 200, "subject_verb": 150}
    found = work(run_of(pairs_frame(PLANTED | {"subject_verb": [1.0] * 4}, counts)))
    names = [name for name in found.tables if name.startswith("relations-ff-")]
    assert [name.removeprefix("relations-ff-") for name in names] == [
        "same_word",
        "same_entity",
        "same_type",
        "adjacent",
        "subject_verb",
    ]
    assert any(
        "FF-amp of subject_verb pairs" in sentence and "higher in layers 1–4" in sentence
        for sentence in found.sentences
    )


def test_a_users_own_relation_may_be_called_adjacent() -> None:
    found = work(run_of(pairs_frame(PLANTED, {"adjacent": 100, "other": 2_000})))
    assert list(found.tables) == ["relations-ff-adjacent", "relations-layer-adjacent"]
    assert "the same distribution of |i − j|" in found.tables["relations-ff-adjacent"].caption


def test_one_layer_and_one_pair_of_scopes() -> None:
    counts = {"same_word": 50, "other": 800}
    found = work(run_of(pairs_frame({"same_word": [2.0]}, counts, (FF,), seed=1)))
    assert set(found.figures) == {"relations-ff", "relations-ff-histograms"}
    assert "significantly higher in layer 1 (p < 0.05)" in found.sentences[0]
    assert len(found.sentences) == len(found.tables) == 2


def test_layers_without_pairs_are_not_in_the_table() -> None:
    pairs = pairs_frame(PLANTED, COUNTS)
    few = (pairs["relation"] == "same_word") & (pairs["layer"] == 2)
    found = work(run_of(pairs[~few]))
    assert found.tables["relations-ff-same_word"].frame["layer"].tolist() == [1, 2, 4]
    assert found.tables["relations-ff-same_type"].frame["layer"].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "counts", [{"special": 50}, {"same_word": 50}, {"same_word": 1, "other": 1}]
)
def test_nothing_to_compare(counts: dict[str, int]) -> None:
    nothing = run_of(pairs_frame({"same_word": [0.0]}, counts, reach={"other": 1}))
    assert EXPERIMENTS[0].work(evidence(nothing)) is None


def test_no_tables() -> None:
    masked = FrameRun({"similarity": pd.DataFrame({"layer": [0]})})
    assert EXPERIMENTS[0].work(evidence(masked)) is None
    empty = run_of(pairs_frame(PLANTED, COUNTS).iloc[:0])
    assert EXPERIMENTS[0].work(evidence(empty)) is None
    assert EXPERIMENTS[0].absent


def test_far_pairs_are_matched_in_groups_where_no_distance_is_the_same() -> None:
    pairs = pairs_frame(PLANTED, COUNTS, reach={"same_word": 1})
    pairs["distance"] = np.where(pairs["relation"] == "same_word", 21, 25)
    found = work(run_of(pairs)).tables["relations-ff-same_word"]
    assert (found.frame["pairs"] == 0).all()
    assert found.frame["mean of all"].isna().all()
    assert found.frame["p"].notna().all()
    assert "Left out: 400 pairs per layer" in found.caption


@pytest.mark.parametrize(("kind", "by"), [("bert", "LN1, FF, RES2 and LN2"), ("gpt2", "LN, FF")])
def test_runs_of_both_kinds_of_layers(kind: str, by: str, tmp_path: Path, letters: Path) -> None:
    model = examples.tiny_checkpoint(tmp_path / "model", model_type=kind)
    done = run(str(model), str(letters), tmp_path / "run", measures="amplification")
    found = work(done)
    layers = list(range(1, done.manifest.model["layers"] + 1))
    assert {name.split("-")[1] for name in found.tables} == {"ff", "layer"}
    for table in found.tables.values():
        assert table.frame["layer"].tolist() == layers
        assert table.frame["p"].between(0, 1).all()
    pairs = done.sql(
        "SELECT count(*) AS n FROM amplification_sample WHERE relation = 'other' AND distance = 1"
    )
    per_layer = pairs["n"].iloc[0] / len(layers) / 2
    assert (found.tables["relations-ff-adjacent"].frame["pairs"] == per_layer).all()
    assert found.sentences[-1].startswith(f"Amplification by {by}")
    for figure in found.figures.values():
        figure.draw().canvas.draw()


def titles(figure: Any) -> list[str]:
    return [axes.get_title("left") for axes in figure.axes if axes.get_visible()]


def test_lines_are_filled_where_the_difference_is_significant(planted: Result) -> None:
    figure = planted.figures["relations-ff"].draw()
    assert titles(figure) == [
        "(a) word-split pairs",
        "(b) same-subword pairs",
        "(c) adjacent pairs",
    ]
    filled = [
        line.get_xdata().tolist()
        for line in figure.axes[0].lines
        if line.get_marker() == "o" and line.get_markerfacecolor() != "white"
    ]
    assert filled == [[2, 3, 4]]


def test_histograms_are_of_the_layer_with_the_largest_effect(planted: Result) -> None:
    frame = planted.tables["relations-ff-same_word"].frame.set_index("layer")
    drawn = titles(planted.figures["relations-ff-histograms"].draw())
    layer = frame["g"].abs().idxmax()
    assert drawn[0] == f"(a) word-split pairs,\nlayer {layer} (counted from 1)"


def test_histograms_of_a_chosen_layer(planted_run: FrameRun) -> None:
    found = work(planted_run, layer=4).figures["relations-ff-histograms"]
    assert all(title.endswith("layer 4 (counted from 1)") for title in titles(found.draw()))
    assert "in layer 4 (counted from 1):" in found.caption
    beyond = work(planted_run, layer=9).figures["relations-ff-histograms"]
    assert "there is no layer 9, counted from 1" in beyond.caption
    assert titles(beyond.draw())


def test_a_deep_models_panels_stand_below_each_other() -> None:
    pairs = pairs_frame({"same_word": [0.0] * 20}, {"same_word": 20, "other": 300}, (FF,))
    figure = work(run_of(pairs), resamples=100).figures["relations-ff"].draw()
    assert figure.axes[0].get_gridspec().ncols == 1
    assert len(titles(figure)) == 2


def test_five_relations_fill_a_grid() -> None:
    counts = {"same_word": 60, "same_entity": 60, "same_type": 60, "mine": 60, "other": 900}
    figure = work(run_of(pairs_frame(PLANTED, counts))).figures["relations-layer"].draw()
    assert len(titles(figure)) == 5
    assert len(figure.axes) == 6


def test_histogram_shares_bins() -> None:
    chance = np.random.default_rng(0)
    target, others = chance.normal(1, 1, 3_000), chance.normal(0, 1, 1_000)
    edges, first, second = histogram(target, others)
    assert len(edges) == 32
    assert len(first) == len(second) == 31
    assert first @ (edges[:-1] + edges[1:]) / 2 > second @ (edges[:-1] + edges[1:]) / 2
    assert (3_000 * first.sum() + 1_000 * second.sum()) / 4_000 == pytest.approx(0.99, abs=0.001)
