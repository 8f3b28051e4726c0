from __future__ import annotations

from itertools import permutations, product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import run_examples as examples
from frame_runs import FrameRun, evidence_of

import normlens
from normlens.corpus import run
from normlens.studies.papers import published
from normlens.studies.papers.related_pairs import ALL, OCCURRENCES, TYPES, figures_7_8
from normlens.studies.reports.contents import Result
from normlens.studies.reports.words import Published

POST = ["ATTN-W", "ATTN-N", "ATTNRES-N", "ATTNRESLN-N", "ATTNRESLNFF-N", "ATTNRESLNFFRES-N"]
POST += ["ATTNRESLNFFRESLN-N"]
FF = ("ATTNRESLN-N", "ATTNRESLNFF-N")
LAYER = ("ATTNRES-N", "ATTNRESLNFFRESLN-N")
SEQUENCES = 40
FIRST = 100_000  # the lowest id of a source, unless it is the target's


def work(run: Any, **settings: Any) -> Result:
    found = figures_7_8(evidence_of(run, **{"resamples": 400, **settings}))
    assert found is not None
    return found


def pairs_frame(
    shifts: dict[str, list[float]],
    counts: dict[str, int],
    scope_pairs: tuple[tuple[str, str], ...] = (FF, LAYER),
    reach: dict[str, int] | None = None,
    seed: int = 1,
) -> pd.DataFrame:
    """Pairs with scores 0.1 · distance + noise, plus each relation's shift of each layer.

    Two occurrences of one pair of subwords follow each other, at the same distance. Only those of
    the relation same_type are pairs of one subword.
    """
    chance = np.random.default_rng(seed)
    parts = []
    layers = len(next(iter(shifts.values())))
    for layer in range(layers):
        for number, (relation, count) in enumerate(counts.items()):
            farthest = (reach or {}).get(relation, 20)
            distance = np.repeat(chance.integers(1, farthest + 1, -(-count // 2)), 2)[:count]
            target_id = np.arange(count) // 2
            same = relation == "same_type"
            drawn = {
                "layer": layer,
                "relation": relation,
                "same_subword": same,
                "distance": distance,
                "index": chance.integers(SEQUENCES, size=count),
                "target": distance,
                "source": 0,
                "source_id": target_id if same else FIRST + number,
                "target_id": target_id,
                "priority": chance.integers(2**63, size=count, dtype=np.uint64),
            }
            for before, after in scope_pairs:
                score = 0.1 * distance + chance.normal(size=count)
                score += shifts.get(relation, [0.0] * layers)[layer]
                parts.append(pd.DataFrame({"before": before, "after": after, **drawn}))
                parts[-1]["score"] = score
    return pd.concat(parts, ignore_index=True)


def run_of(pairs: pd.DataFrame, scopes: list[str] = POST) -> FrameRun:
    """A run that kept all pairs in its sample."""
    keys = ["before", "after", "layer", "relation"]
    squares = pairs.assign(square=pairs["score"] ** 2)
    distance = squares.groupby(["index", *keys, "same_subword", "distance"]).agg(
        count=("score", "size"), sum=("score", "sum"), sum_squares=("square", "sum")
    )
    types = pairs.groupby([*keys, "source_id", "target_id"]).agg(
        count=("score", "size"), sum=("score", "sum"), sum_distance=("distance", "sum")
    )
    return FrameRun(
        {
            "amplification_sample": pairs,
            "amplification_distance": distance.reset_index(),
            "amplification_pairs": types.reset_index(),
        },
        list(scopes),
    )


def rows_of(result: Result, name: str, procedure: str = ALL) -> pd.DataFrame:
    """One procedure's rows of a table."""
    frame = result.tables[name].frame
    return frame[frame["procedure"] == procedure].reset_index(drop=True)


def verdicts(frame: pd.DataFrame) -> dict[int, int]:
    """The significant direction of each tested layer: +1, −1, or 0."""
    tested = frame[frame["p"].notna()]
    signs = np.where(tested["significant"], np.sign(tested["difference"]), 0)
    return dict(zip(tested["layer"].tolist(), signs.astype(int).tolist(), strict=True))


PLANTED = {"word_outside_entity": [0.0, 0.6, 0.7, -0.5], "same_type": [0.0] * 4}
COUNTS = {"word_outside_entity": 400, "same_type": 300, "other": 6_000, "special": 500}


@pytest.fixture(scope="module")
def planted_run():
    return run_of(pairs_frame(PLANTED, COUNTS))


@pytest.fixture(scope="module")
def planted(planted_run):
    return work(planted_run)


@pytest.mark.parametrize("procedure", [TYPES, OCCURRENCES, ALL])
def test_planted_layers_are_the_significant_ones(planted, procedure):
    frame = rows_of(planted, "relations-ff-same_word", procedure)
    assert frame["layer"].tolist() == [1, 2, 3, 4]
    assert frame["significant"].tolist() == [False, True, True, True]
    assert (frame["g"].iloc[1:3] > 0.3).all()
    assert frame["g"].iloc[3] < -0.2
    same_type = rows_of(planted, "relations-ff-same_type", procedure)
    assert not same_type["significant"].any()
    assert (same_type["p adjusted"] >= same_type["p"]).all()


def test_all_occurrences_are_not_deceived_where_the_papers_procedure_is():
    """Scores of whole sequences: the paper's procedure, which ignores them, is deceived."""
    counts = {"word_outside_entity": 900, "other": 5_000}
    pairs = pairs_frame({"word_outside_entity": [0.0] * 3}, counts, (FF,))
    chance = np.random.default_rng(0)
    word = pairs["relation"] == "word_outside_entity"
    # Half of the words' pairs come from two sequences; all of a sequence's pairs are alike.
    pairs.loc[word, "index"] = np.where(
        chance.random(word.sum()) < 0.5, chance.integers(2, size=word.sum()), pairs["index"][word]
    )
    by_sequence = chance.normal(0, 3, (3, SEQUENCES))
    by_sequence[:, :2] = [[4.0, 4.0], [0.0, 0.0], [4.0, 4.0]]
    pairs["score"] += by_sequence[pairs["layer"], pairs["index"]]
    pairs.loc[word & (pairs["layer"] == 1), "score"] += 3.0
    found = work(run_of(pairs))
    paper = verdicts(rows_of(found, "relations-ff-same_word", TYPES))
    robust = verdicts(rows_of(found, "relations-ff-same_word"))
    assert paper == {1: 1, 2: 1, 3: 1}
    assert robust == {1: 0, 2: 1, 3: 0}
    share = "share of layers where FF-amp of word-split pairs is significantly higher"
    assert found.summary[share] == pytest.approx(1 / 3)


def test_all_occurrences_are_reweighted_exactly(planted_run, planted):
    pairs = planted_run.frames["amplification_sample"]
    row = rows_of(planted, "relations-layer-same_word").set_index("layer").loc[2]
    here = pairs[(pairs["before"] == LAYER[0]) & (pairs["layer"] == 1)]
    target = here[here["relation"] == "word_outside_entity"]
    others = here[here["relation"].isin(["other", "special"])]
    expected = [
        others.loc[others["distance"] == distance, "score"].mean()
        for distance in target["distance"]
    ]
    assert row["pairs"] == len(target)
    assert row["mean"] == pytest.approx(target["score"].mean())
    assert row["others"] == pytest.approx(np.mean(expected))
    assert row["others low"] < np.mean(expected) < row["others high"]


def test_the_papers_pairs_are_of_subword_types_that_occur_twice():
    counts = {"word_outside_entity": 201, "word_in_entity": 100, "other": 4_000}
    pairs = pairs_frame({"word_outside_entity": [0.5]}, counts, (FF,))
    entity = pairs["relation"] == "word_in_entity"
    # The last type occurs once as a word outside an entity and once inside: twice in one word.
    pairs.loc[pairs.index[entity][:1], ["source_id", "target_id"]] = FIRST, 100
    pairs.loc[pairs.index[entity][0], "distance"] = pairs["distance"][200]
    found = work(run_of(pairs))
    target = pairs[pairs["relation"].str.startswith("word")]
    means = target.groupby(["source_id", "target_id"])["score"].agg(["mean", "size"])
    assert (means["size"] == 1).sum() == 1
    often = means[means["size"] > 1]
    row = rows_of(found, "relations-ff-same_word", TYPES).iloc[0]
    assert row["pairs"] == len(often) == 150
    assert row["mean"] == pytest.approx(often["mean"].mean())
    every = rows_of(found, "relations-ff-same_word", OCCURRENCES).iloc[0]
    assert every["pairs"] == len(target) == 301
    assert every["mean"] == pytest.approx(target["score"].mean())
    entities = rows_of(found, "relations-ff-same_entity", TYPES).iloc[0]
    assert entities["pairs"] == 49  # one lost an occurrence
    none = work(run_of(pairs), min_count=3)
    assert set(none.tables["relations-ff-same_word"].frame["procedure"]) == {OCCURRENCES, ALL}
    assert "relations-ff-histograms" not in none.figures
    none.figures["relations-ff"].draw().canvas.draw()


def test_others_that_were_cut_at_some_distance_weigh_as_often_as_they_occur():
    """At distance 1 the 400 lowest of 4000 unrelated pairs are kept, of 1000 special ones all."""
    counts = {"word_outside_entity": 300, "other": 4_000, "special": 1_000}
    done = run_of(pairs_frame({"special": [5.0]}, counts, (FF,), reach=dict.fromkeys(counts, 1)))
    pairs = done.frames["amplification_sample"].sort_values("priority")
    unrelated = pairs[pairs["relation"] == "other"].head(400)
    kept = pd.concat([unrelated, pairs[pairs["relation"] != "other"]])
    far = kept[kept["relation"] == "other"].head(50).assign(distance=2)  # all of a distance
    done.frames["amplification_sample"] = pd.concat([kept, far])
    row = rows_of(work(done), "relations-ff-same_word", OCCURRENCES).iloc[0]
    assert row["others"] == pytest.approx(0.1 + 5 / 5, abs=0.4)


def test_adjacent_pairs_stand_beside_pairs_further_apart(planted_run, planted):
    pairs = planted_run.frames["amplification_sample"]
    here = pairs[(pairs["before"] == FF[0]) & (pairs["relation"] == "other")]
    here = here[here["layer"] == 0]
    near = here["distance"] == 1
    row = rows_of(planted, "relations-ff-adjacent").iloc[0]
    assert row["pairs"] == near.sum()
    assert row["mean"] == pytest.approx(here.loc[near, "score"].mean())
    assert row["others"] == pytest.approx(here.loc[~near, "score"].mean())
    drawn = rows_of(planted, "relations-ff-adjacent", OCCURRENCES).iloc[0]
    assert near.sum() * 0.9 < drawn["pairs"] <= near.sum()
    assert drawn["others"] == pytest.approx(here.loc[~near, "score"].mean(), abs=0.2)
    assert "cannot be matched by distance" in planted.tables["relations-ff-adjacent"].caption


def test_shuffled_relations_are_seldom_significant():
    """20 layers without any effect: by the paper's criterion 5 % of them, adjusted none."""
    counts = {"word_outside_entity": 200, "other": 1_500}
    found = work(run_of(pairs_frame({"word_outside_entity": [0.0] * 20}, counts, (FF,), seed=3)))
    for procedure in (TYPES, OCCURRENCES, ALL):
        frame = rows_of(found, "relations-ff-same_word", procedure)
        assert (frame["p"] < 0.05).sum() <= 5  # 99.9 % of the binomial distribution
        assert frame["p"].nunique() > 10
        assert not frame["significant"].any()


def test_pairs_at_distances_without_others_are_left_out_and_counted():
    reach = {"word_outside_entity": 20, "other": 10, "special": 10}
    pairs = pairs_frame(PLANTED, COUNTS, reach=reach)
    found = work(run_of(pairs))
    target = pairs[(pairs["before"] == FF[0]) & (pairs["relation"] == "word_outside_entity")]
    alone = target[target["distance"] > 10].groupby("layer").size()
    frame = rows_of(found, "relations-ff-same_word")
    assert (frame["pairs"] == 400 - alone.to_numpy()).all()
    caption = found.tables["relations-ff-same_word"].caption
    assert f"left out: {alone.max()} pairs per layer" in caption


def test_published_layers_stand_beside_the_measured_ones(planted_run, monkeypatch):
    layers = ("same_word/layer-1", "same_word/layer-2", "same_word/layer-4", "same_entity/layer-1")
    entries = [
        Published(f"significance/{key}", key, 1.0, "owner/tiny", "here", None, "a paper")
        for key in layers
    ]
    monkeypatch.setattr(published, "published", lambda: entries)
    found = work(planted_run).comparisons
    assert [entry.measured for entry in found] == [0.0, 1.0, 0.0, None]  # layer 4: lower
    assert all(entry.same for entry in found)


def test_entities_and_own_relations_have_their_tables():
    counts = COUNTS | {"entity_across_words": 200, "subject_verb": 150}
    found = work(run_of(pairs_frame(PLANTED | {"subject_verb": [1.0] * 4}, counts)))
    names = [name for name in found.tables if name.startswith("relations-ff-")]
    kinds = "same_word same_entity entity_across_words same_type adjacent subject_verb"
    assert [name.removeprefix("relations-ff-") for name in names] == kinds.split()
    own = verdicts(rows_of(found, "relations-ff-subject_verb"))
    assert own == dict.fromkeys((1, 2, 3, 4), 1)
    apart = "Pairs that are of a relation of yours as well are counted there alone."
    assert found.tables["relations-ff-same_word"].caption.endswith(apart)
    assert apart not in found.tables["relations-ff-subject_verb"].caption


def test_a_layer_in_which_one_sequence_has_all_pairs_has_no_test():
    pairs = pairs_frame(PLANTED, COUNTS)
    one = (pairs["relation"] == "word_outside_entity") & (pairs["layer"] == 2)
    pairs.loc[one, "index"] = 5
    found = work(run_of(pairs))
    frame = rows_of(found, "relations-ff-same_word")
    assert frame["p"].isna().tolist() == [False, False, True, False]
    assert verdicts(frame) == {1: 0, 2: 1, 4: -1}
    assert verdicts(rows_of(found, "relations-ff-same_word", TYPES))[3] == 1
    everywhere = pairs["relation"] == "word_outside_entity"
    pairs.loc[everywhere, "index"] = 5
    alone = work(run_of(pairs))
    assert rows_of(alone, "relations-ff-same_word")["p"].isna().all()
    for figure in alone.figures.values():
        figure.draw().canvas.draw()


@pytest.mark.parametrize(
    "counts", [{"special": 50}, {"word_outside_entity": 50}, {"word_outside_entity": 1, "other": 1}]
)
def test_nothing_to_compare(counts):
    nothing = run_of(pairs_frame({"word_outside_entity": [0.0]}, counts, reach={"other": 1}))
    assert figures_7_8(evidence_of(nothing)) is None
    empty = {name: frame.iloc[:0] for name, frame in nothing.frames.items()}
    assert figures_7_8(evidence_of(FrameRun(empty, POST))) is None


# What they are compared with, by loops over the pairs of a run ------------------------------------

KINDS = {"same_word": "word", "same_entity": "entity"}


class Token(NamedTuple):
    """A token of a sentence that is spelled letter by letter."""

    name: str
    word: int | None = None
    entity: int | None = None


def sentence(chance: np.random.Generator) -> list[tuple[str, str]]:
    """Words of one to four letters with their tags; some entities have several words."""
    rows: list[tuple[str, str]] = []
    for _ in range(chance.integers(3, 6)):
        size = int(chance.integers(1, 3))
        tags = ["B-PER", "I-PER"][:size] if chance.random() < 0.6 else ["O"] * size
        rows += [("".join(chance.choice(list("ab"), chance.integers(1, 5))), tag) for tag in tags]
    return rows


def tokens_of(rows: list[tuple[str, str]]) -> list[Token]:
    tokens, entity = [Token("[CLS]")], -1
    for word, (letters, tag) in enumerate(rows):
        entity += tag.startswith("B")
        names = [f"##{letter}" if place else letter for place, letter in enumerate(letters)]
        tokens += [Token(name, word, None if tag == "O" else entity) for name in names]
    return [*tokens, Token("[SEP]")]


@pytest.fixture(scope="module")
def spelled(tmp_path_factory):
    """A run over sentences with entities, and FF-amp of all of its pairs i ≠ j, by loops."""
    folder = tmp_path_factory.mktemp("spelled")
    model = examples.tiny_checkpoint(folder / "model")
    chance = np.random.default_rng(4)
    sentences = [sentence(chance) for _ in range(14)]
    data = folder / "some.conll"
    data.write_text("\n".join("".join(f"{w} {t}\n" for w, t in rows) for rows in sentences))
    lens = normlens.load(model, device="cpu")
    pairs = []
    for rows in sentences:
        tokens = tokens_of(rows)
        maps = lens.maps(" ".join(word for word, _ in rows))
        assert maps.raw_tokens == [token.name for token in tokens]
        for layer in maps.layers:
            before, after = (maps.at(scope, layer).astype(float) for scope in FF)
            for (i, target), (j, source) in permutations(enumerate(tokens), 2):
                score = after[i, j] / sum(after[:, j]) - before[i, j] / sum(before[:, j])
                pairs.append(
                    {
                        "layer": layer,
                        "distance": abs(i - j),
                        "score": score,
                        "one subword": source.name == target.name,
                        "ordinary": None not in (source.word, target.word),
                        "word": source.word is not None and source.word == target.word,
                        "entity": source.entity is not None and source.entity == target.entity,
                    }
                )
    return run(lens, f"conll2003:{data}", folder / "run", measures="amplification"), pairs


def is_other(pair: dict[str, Any], kind: str, others: str) -> bool:
    """Whether a pair is among those that the pairs of a kind are compared with."""
    if others == "paper":
        return not (pair["one subword"] or pair[kind])
    return pair["ordinary"] and not (pair["word"] or pair["entity"] or pair["one subword"])


@pytest.mark.parametrize("others", ["paper", "unrelated"])
@pytest.mark.parametrize("name", KINDS)
def test_others_are_found_by_loops_over_all_pairs(name, others, spelled):
    done, every = spelled
    given = {} if others == "paper" else {"others": others}  # the paper's are the default
    found = rows_of(work(done, **given), f"relations-ff-{name}").set_index("layer")
    for layer in sorted({pair["layer"] for pair in every}):
        here = [pair for pair in every if pair["layer"] == layer]
        kind, of_paper = KINDS[name], others == "paper"
        related = [p for p in here if p[kind] and not (of_paper and p["one subword"])]
        rest = [pair for pair in here if is_other(pair, kind, others)]
        at = {
            distance: [pair["score"] for pair in rest if pair["distance"] == distance]
            for distance in {pair["distance"] for pair in here}
        }
        matched = [pair for pair in related if at[pair["distance"]]]
        row = found.loc[layer + 1]
        assert row["pairs"] == len(matched)
        assert row["mean"] == pytest.approx(np.mean([p["score"] for p in matched]), abs=1e-6)
        expected = np.mean([np.mean(at[pair["distance"]]) for pair in matched])
        assert row["others"] == pytest.approx(expected, abs=1e-6)


def test_a_decoders_run(tmp_path, letters):
    model = examples.tiny_checkpoint(tmp_path / "model", model_type="gpt2")
    done = run(str(model), str(letters), tmp_path / "run", measures="amplification")
    found = work(done)
    layers = list(range(1, done.manifest.model["layers"] + 1))
    assert {name.split("-")[1] for name in found.tables} == {"ff", "layer"}
    for name in found.tables:
        frame = rows_of(found, name)
        assert frame["layer"].tolist() == layers
        assert frame["p"].between(0, 1).all()
    caption = found.tables["relations-layer-adjacent"].caption
    assert caption.startswith("Amplification by all behind the first residual")
    for figure in found.figures.values():
        figure.draw().canvas.draw()


def titles(figure: Any) -> list[str]:
    return [axes.get_title("left") for axes in figure.axes if axes.get_visible()]


def test_both_procedures_are_drawn_and_filled_where_they_are_significant(planted):
    shown = planted.figures["relations-ff"]
    figure = shown.draw()
    kinds = ("word-split", "same-subword", "adjacent")
    sides = ("as in the paper", "all occurrences")
    named = zip("abcdef", product(kinds, sides), strict=True)
    assert titles(figure) == [f"({letter}) {kind} pairs: {side}" for letter, (kind, side) in named]
    assert "the paper's procedure (Figure 7)" in shown.caption
    assert "Figure 7" not in planted.figures["relations-layer"].caption
    for panel, procedure in zip(figure.axes[:2], (TYPES, ALL), strict=True):
        circles = [line for line in panel.lines if line.get_marker() == "o"]
        filled = [line for line in circles if line.get_markerfacecolor() != "white"]
        assert [line.get_xdata().tolist() for line in filled] == [[2, 3, 4]]
        (means,) = [line for line in panel.lines if line.get_label() == "related pairs"]
        expected = rows_of(planted, "relations-ff-same_word", procedure)["mean"]
        np.testing.assert_allclose(means.get_ydata(), expected)


def test_histograms_of_a_chosen_layer(planted_run, planted):
    found = work(planted_run, layer=4).figures["relations-ff-histograms"]
    assert all(title.endswith("layer 4 (counted from 1)") for title in titles(found.draw()))
    assert "in layer 4 (counted from 1):" in found.caption
    assert "relations-ff-histograms" not in work(planted_run, layer=9).figures
    strongest = planted.figures["relations-ff-histograms"]
    assert "in the layer with the largest effect" in strongest.caption
    assert titles(strongest.draw())
