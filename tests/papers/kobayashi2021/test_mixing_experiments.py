from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest
from frame_runs import FrameRun, evidence_of
from scipy.stats import spearmanr
from tokenizers import processors

import normlens
from normlens.corpus import Run, run
from normlens.errors import InputError
from normlens.studies.papers import mixing
from normlens.studies.papers.published import Evidence
from normlens.studies.reports.contents import Result

POST = ["ATTN-W", "ATTNRES-W", "ATTN-N", "ATTNRES-N", "ATTNRESLN-N", "ATTNRESLNFF-N"]
PARALLEL = ["ATTN-W", "ATTNRES-W", "ATTN-N", "ATTNFF-N", "ATTNFFRES-N"]


def made(scopes: list[str], causal: bool, *categories: str) -> Evidence:
    """Six sequences of tokens of these categories in three layers, in layer k a ratio of k / 10."""
    rows = product(range(6), range(3), scopes, enumerate(categories))
    frame = pd.DataFrame(
        [
            (index, layer, scope, position, position + index, category, 0.1 * (layer + 1))
            for index, layer, scope, (position, category) in rows
        ],
        columns=["index", "layer", "scope", "position", "token_id", "category", "ratio"],
    )
    return evidence_of(FrameRun({"mixing": frame}, scopes, causal))


def worked(experiment: Any, evidence: Evidence) -> Result:
    result = experiment(evidence)
    assert result is not None
    return result


@pytest.fixture(scope="module")
def finished(tiny_bert, letters, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "masked"
    return run(tiny_bert, letters, out, measures="mixing", mask=0.12, block_size=7)


@pytest.fixture
def evidence(finished):
    return evidence_of(finished)


# Mixing ----------------------------------------------------------------------------------------


def test_table_is_what_the_whole_table_gives(evidence, finished):
    rows = finished.table("mixing")
    table = worked(mixing.section_4, evidence).tables["mixing"].frame.set_index("method")
    assert list(table.index) == evidence.scopes
    for scope, own in rows.groupby("scope"):
        layers = 100 * own.groupby("layer")["ratio"].mean()
        expected = [layers.max(), layers.min(), 100 * own["ratio"].max(), 100 * own["ratio"].min()]
        assert table.loc[scope, "mean"] == pytest.approx(100 * own["ratio"].mean())
        assert table.loc[scope].tolist()[3:] == pytest.approx(expected)


def test_heat_maps_hold_every_category_that_occurs(evidence, finished):
    rows = finished.table("mixing")
    grid = worked(mixing.section_4, evidence).tables["mixing-layers"].frame
    assert list(grid) == ["method", "layer", "all", "ordinary", "[MASK]", "[CLS]", "[SEP]"]
    assert grid["layer"].unique().tolist() == [1, 2]
    cell = rows.query("scope == 'ATTNRES-N' and layer == 1 and category == 'mask'")["ratio"].mean()
    found = grid.query("method == 'ATTNRES-N' and layer == 2")["[MASK]"].item()
    assert found == pytest.approx(100 * cell)
    drawn = worked(mixing.section_4, evidence).figures["mixing"].draw()
    titles = [axes.get_title(loc="left") for axes in drawn.axes]
    assert [title for title in titles if title] == evidence.scopes


def test_one_category_is_drawn_as_one_panel_of_methods():
    result = worked(mixing.section_4, made(POST, False, *["ordinary"] * 3))
    assert list(result.tables["mixing-layers"].frame) == ["method", "layer", "ordinary"]
    panel = result.figures["mixing"].draw().axes[0]
    assert [label.get_text() for label in panel.get_yticklabels()] == POST
    np.testing.assert_allclose(panel.images[0].get_array()[0], [10, 20, 30])


def test_causal_models_have_a_beginning_and_no_cls():
    result = worked(mixing.section_4, made(PARALLEL, True, "cls", "ordinary"))
    assert list(result.tables["mixing-layers"].frame)[2:] == ["all", "ordinary", "BOS"]
    assert result.tables["mixing"].frame["mean"].tolist() == pytest.approx([20] * len(PARALLEL))


# Frequency -------------------------------------------------------------------------------------


def occurrences(run: Run, scope: str) -> pd.DataFrame:
    rows = run.table("mixing")
    own = rows[(rows["scope"] == scope) & (rows["category"] != "mask")]
    keys = ["index", "position", "token_id", "category"]
    return own.groupby(keys, as_index=False)["ratio"].mean()


def correlations(own: pd.DataFrame, rank: Any) -> list[float]:
    """All tokens, ordinary ones, all types, ordinary ones, as the table has them."""
    tokens = [own, own[own["category"] == "ordinary"]]
    types = [part.groupby("token_id", as_index=False)["ratio"].mean() for part in tokens]
    return [spearmanr(p["ratio"], rank(p["token_id"])).statistic for p in (*tokens, *types)]


def test_correlations_with_the_corpus_ranks(evidence, finished):
    table = worked(mixing.section_5, evidence).tables["frequency"].frame.set_index("method")
    assert list(table.index) == evidence.scopes
    for scope in ("ATTN-W", "ATTN-N", "ATTNRESLN-N"):
        own = occurrences(finished, scope)
        counts = own["token_id"].value_counts()
        expected = correlations(own, lambda ids, counts=counts: -counts.loc[ids].to_numpy())
        assert table.loc[scope].tolist() == pytest.approx(expected, abs=1e-9)
    np.testing.assert_allclose(table.loc["ATTN-W"].tolist(), table.loc["ATTNRES-W"].tolist())


def test_correlations_with_ranks_from_a_file(evidence, finished, tmp_path):
    own = occurrences(finished, "ATTNRES-N")
    ids = sorted(own["token_id"].unique())
    ranks = {token: 1 + 3 * place % 7 for place, token in enumerate(ids[:-2])}  # with ties
    file = tmp_path / "ranks.txt"
    file.write_text("".join(f"{rank} 10 {token}\n" for token, rank in ranks.items()) + "\n")
    result = worked(mixing.section_5, evidence_of(finished, ranks=str(file)))
    table = result.tables["frequency"].frame.set_index("method")
    expected = correlations(own, lambda ids: [ranks.get(token, 8) for token in ids])
    assert table.loc["ATTNRES-N"].tolist() == pytest.approx(expected, abs=1e-9)
    assert "Without a rank in the file: 2 subwords." in result.tables["frequency"].caption
    assert "ranks.txt" in result.tables["frequency"].caption


def test_scatter_plot_of_a_large_corpus_is_a_sample(evidence, finished, monkeypatch):
    monkeypatch.setattr(mixing, "_POINTS", 60)
    figure = worked(mixing.section_5, evidence).figures["frequency"]
    total = len(occurrences(finished, "ATTN-N"))
    assert "Of more than 60 occurrences" in figure.caption
    points = sum(len(c.get_offsets()) for c in figure.draw().axes[0].collections)
    assert 20 < points < 120 < total


@pytest.mark.parametrize(
    "contents", ["rank count id\n1 2 3\n", "0 5 1\n", "1 5 7\n2 4 7\n", "\n", "1 5 999999\n", None]
)
def test_wrong_rank_files_are_refused(finished, tmp_path, contents):
    file = tmp_path / "ranks.txt"
    if contents is not None:
        file.write_text(contents)
    with pytest.raises(InputError):
        worked(mixing.section_5, evidence_of(finished, ranks=str(file)))


# Sentence --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lens(tiny_bert):
    return normlens.load(str(tiny_bert), device="cpu")


@pytest.fixture(scope="module")
def lens_of_pairs(tiny_bert):
    """A lens whose tokenizer separates the texts of a pair."""
    lens = normlens.load(str(tiny_bert), device="cpu")
    lens.tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return lens


def test_maps_of_a_given_pair(lens_of_pairs, tmp_path):
    mixing.write_sentence(lens_of_pairs, "abc d | ef", tmp_path)
    maps = normlens.open(tmp_path / mixing.SENTENCE)
    assert maps.text == ("abc d", "ef")
    assert maps.scopes == ["ATTN-W", "ATTNRES-W", "ATTN-N", "ATTNRESLN-N"]
    np.testing.assert_array_equal(maps["ATTN-N"], lens_of_pairs.maps(("abc d", "ef"))["ATTN-N"])


def test_shares_of_diagonal_and_special_tokens(lens, tmp_path):
    mixing.write_sentence(lens, "abc d ef", tmp_path)
    maps = normlens.open(tmp_path / mixing.SENTENCE)
    result = worked(mixing.example_sentence, evidence_of(None, folder=tmp_path))
    table = result.tables["sentence"].frame
    assert table["layer"].tolist() == [1, 2]
    n = len(maps.tokens)
    for scope in maps.scopes:
        for k, own in enumerate(maps[scope].astype(float)):
            rows = [own[i] / own[i].sum() for i in range(n)]
            diagonal = sum(rows[i][i] for i in range(n)) / n
            special = sum(rows[i][j] for i in range(n) for j in (0, n - 1) if i != j) / n
            assert table[f"{scope} diagonal"][k] == pytest.approx(100 * diagonal, rel=1e-5)
            assert table[f"{scope} special"][k] == pytest.approx(100 * special, rel=1e-5)
    half = table["ATTNRES-W diagonal"]
    np.testing.assert_allclose(half, 50 + table["ATTN-W diagonal"] / 2, rtol=1e-4)


def test_default_is_a_pair_only_where_pairs_are_parted(minilm, lens):
    assert mixing.chosen_text(minilm, None) == mixing.PAIR
    assert mixing.chosen_text(lens, None) == mixing.SINGLE  # its tokenizer knows no pairs
    assert mixing.chosen_text(lens, "one text") == "one text"
