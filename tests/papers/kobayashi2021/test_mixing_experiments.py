from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr
from tokenizers import processors

import normlens
from normlens.corpus import Run, run
from normlens.errors import InputError
from normlens.lens import Lens
from normlens.studies.papers import mixing, published
from normlens.studies.papers.published import Evidence
from normlens.studies.papers.settings import Settings
from normlens.studies.reports.contents import Result
from normlens.studies.reports.words import Published

duckdb = pytest.importorskip("duckdb", reason="reading tables needs DuckDB")

POST = ["ATTN-W", "ATTNRES-W", "ATTN-N", "ATTNRES-N", "ATTNRESLN-N", "ATTNRESLNFF-N"]
PARALLEL = ["ATTN-W", "ATTNRES-W", "ATTN-N", "ATTNFF-N", "ATTNFFRES-N"]


def settings(**fields: Any) -> Settings:
    return Settings(
        **{"kinds": ("mixing",), "model": "tiny", "data": ("x",), "resamples": 200} | fields
    )


@dataclass
class FrameRun:
    """A run whose one table is a frame."""

    frame: pd.DataFrame
    scopes: list[str]
    causal: bool = False

    @property
    def manifest(self) -> Any:
        return SimpleNamespace(model={"name": "tiny", "scopes": self.scopes, "causal": self.causal})

    @property
    def tables(self) -> list[str]:
        return ["mixing"]

    def sql(self, query: str) -> pd.DataFrame:
        with duckdb.connect(":memory:") as connection:
            connection.register("mixing", self.frame)
            return connection.sql(query).df()


def made(
    scopes: list[str],
    ratio: Any,
    *,
    causal: bool = False,
    categories: tuple[str, ...],
    **fields: Any,
) -> Evidence:
    """Six sequences of tokens of these categories in three layers; `ratio` of a row's fields."""
    rows = [
        {
            "index": index,
            "layer": layer,
            "scope": scope,
            "position": position,
            "token_id": (position + index) % 4 if category == "ordinary" else 100 + position,
            "category": category,
        }
        for index in range(6)
        for layer in range(3)
        for scope in scopes
        for position, category in enumerate(categories)
    ]
    frame = pd.DataFrame(rows)
    frame["ratio"] = [ratio(row) for row in rows]
    return Evidence("sst2", FrameRun(frame, scopes, causal), settings=settings(**fields))  # type: ignore[arg-type]


def worked(experiment: Any, evidence: Evidence) -> Result:
    result = experiment.work(evidence)
    assert result is not None
    return result


@pytest.fixture(scope="module")
def finished(tiny_bert: Path, letters: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("runs") / "masked"
    return run(tiny_bert, letters, out, measures="mixing", mask=0.12, block_size=7)


@pytest.fixture
def evidence(finished: Run) -> Evidence:
    return Evidence("letters", finished, settings=settings())


# Mixing ----------------------------------------------------------------------------------------


def test_table_is_what_the_whole_table_gives(evidence: Evidence, finished: Run) -> None:
    rows = finished.table("mixing")
    table = worked(mixing.section_4, evidence).tables["mixing"].frame.set_index("method")
    assert list(table.index) == evidence.scopes
    for scope, own in rows.groupby("scope"):
        layers = 100 * own.groupby("layer")["ratio"].mean()
        expected = [layers.max(), layers.min(), 100 * own["ratio"].max(), 100 * own["ratio"].min()]
        assert table.loc[scope, "mean"] == pytest.approx(100 * own["ratio"].mean())
        assert table.loc[scope].tolist()[3:] == pytest.approx(expected)


def test_interval_resamples_sequences_as_wholes(evidence: Evidence, finished: Run) -> None:
    rows = finished.table("mixing")
    table = worked(mixing.section_4, evidence).tables["mixing"].frame.set_index("method")
    own = rows[rows["scope"] == "ATTN-N"].groupby("index")["ratio"].agg(["sum", "count"])
    chance = np.random.default_rng(1)
    drawn = own.to_numpy()[chance.integers(0, len(own), (4000, len(own)))].sum(axis=1)
    error = np.std(100 * drawn[:, 0] / drawn[:, 1])
    low, high = table.loc["ATTN-N", ["95 % low", "95 % high"]]
    assert low < table.loc["ATTN-N", "mean"] < high
    assert (high - low) / (2 * 1.96) == pytest.approx(error, rel=0.2)


def test_heat_maps_hold_every_category_that_occurs(evidence: Evidence, finished: Run) -> None:
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


def test_one_category_is_drawn_as_one_panel_of_methods() -> None:
    ordinary = made(POST, lambda row: 0.1 * (row["layer"] + 1), categories=("ordinary",) * 3)
    result = worked(mixing.section_4, ordinary)
    assert list(result.tables["mixing-layers"].frame) == ["method", "layer", "ordinary"]
    panel = result.figures["mixing"].draw().axes[0]
    assert [label.get_text() for label in panel.get_yticklabels()] == POST
    np.testing.assert_allclose(panel.images[0].get_array()[0], [10, 20, 30])


def test_means_by_layer_and_category() -> None:
    def ratio(row: dict[str, Any]) -> float:
        by_category = {"ordinary": 0.5, "cls": 0.1, "sep": 0.7}[row["category"]]
        return by_category - 0.02 * row["layer"] if row["scope"] == "ATTNRESLN-N" else 0.9

    result = worked(
        mixing.section_4, made(POST, ratio, categories=("cls", "ordinary", "ordinary", "sep"))
    )
    row = result.tables["mixing"].frame.set_index("method").loc["ATTNRESLN-N"]
    assert row["mean"] == pytest.approx(43)
    assert row["highest layer mean"] == pytest.approx(45)
    assert row["lowest layer mean"] == pytest.approx(41)
    grid = result.tables["mixing-layers"].frame.set_index(["method", "layer"]).loc["ATTNRESLN-N"]
    assert grid["[SEP]"].mean() == pytest.approx(68)
    assert grid["[CLS]"].mean() == pytest.approx(8)
    assert result.summary["Mean mixing ratio, ATTN-N (%)"] == pytest.approx(90)


def test_causal_models_have_a_beginning_and_no_cls() -> None:
    causal = made(PARALLEL, lambda row: 0.3, causal=True, categories=("cls", "ordinary"))
    result = worked(mixing.section_4, causal)
    assert list(result.tables["mixing-layers"].frame)[2:] == ["all", "ordinary", "BOS"]
    assert result.tables["mixing"].frame["mean"].tolist() == pytest.approx([30] * len(PARALLEL))


def test_published_means_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    blank = {"label": "", "data_label": "", "source": ""}
    entries = tuple(
        Published(key=key, value=50.0, model="tiny", data="sst2", **blank)
        for key in ("mixing/ATTN-W", "mixing-poster/ATTN-N", "mixing/ATTNX-N", "expansion/mean")
    )
    monkeypatch.setattr(published, "published", lambda: entries)
    found = worked(
        mixing.section_4, made(POST, lambda row: 0.25, categories=("ordinary",) * 2)
    ).comparisons
    assert {c.published.key: c.measured for c in found} == {
        "mixing/ATTN-W": pytest.approx(25),
        "mixing-poster/ATTN-N": pytest.approx(25),
        "mixing/ATTNX-N": None,
    }
    assert all(c.same for c in found)


@pytest.mark.parametrize("experiment", [mixing.section_4, mixing.section_5])
def test_nothing_to_show_without_mixing_ratios(experiment: Any) -> None:
    bare = SimpleNamespace(tables=["similarity"])
    work = experiment.work
    assert work(Evidence("sst2", bare, settings=settings())) is None  # type: ignore[arg-type]


# Frequency -------------------------------------------------------------------------------------


def occurrences(run: Run, scope: str) -> pd.DataFrame:
    rows = run.table("mixing")
    own = rows[(rows["scope"] == scope) & (rows["category"] != "mask")]
    keys = ["index", "position", "token_id", "category"]
    return own.groupby(keys, as_index=False)["ratio"].mean()


def correlations(own: pd.DataFrame, rank: Any) -> list[float]:
    """All tokens, ordinary ones, all types, ordinary ones, as the table has them."""
    ordinary = own[own["category"] == "ordinary"]
    found = [spearmanr(part["ratio"], rank(part["token_id"])).statistic for part in (own, ordinary)]
    for part in (own, ordinary):
        types = part.groupby("token_id", as_index=False)["ratio"].mean()
        found.append(spearmanr(types["ratio"], rank(types["token_id"])).statistic)
    return found


def test_correlations_with_the_corpus_ranks(evidence: Evidence, finished: Run) -> None:
    table = worked(mixing.section_5, evidence).tables["frequency"].frame.set_index("method")
    assert list(table.index) == evidence.scopes
    for scope in ("ATTN-W", "ATTN-N", "ATTNRESLN-N"):
        own = occurrences(finished, scope)
        counts = own["token_id"].value_counts()
        expected = correlations(own, lambda ids, counts=counts: -counts.loc[ids].to_numpy())
        assert table.loc[scope].tolist() == pytest.approx(expected, abs=1e-9)
    np.testing.assert_allclose(table.loc["ATTN-W"].tolist(), table.loc["ATTNRES-W"].tolist())


def test_correlations_with_ranks_from_a_file(
    evidence: Evidence, finished: Run, tmp_path: Path
) -> None:
    own = occurrences(finished, "ATTNRES-N")
    ids = sorted(own["token_id"].unique())
    ranks = {token: 1 + 3 * place % 7 for place, token in enumerate(ids[:-2])}  # with ties
    file = tmp_path / "ranks.txt"
    file.write_text("".join(f"{rank} 10 {token}\n" for token, rank in ranks.items()) + "\n")
    result = worked(
        mixing.section_5, Evidence("letters", finished, settings=settings(ranks=str(file)))
    )
    table = result.tables["frequency"].frame.set_index("method")
    expected = correlations(own, lambda ids: [ranks.get(token, 8) for token in ids])
    assert table.loc["ATTNRES-N"].tolist() == pytest.approx(expected, abs=1e-9)
    assert "Without a rank in the file: 2 subwords." in result.tables["frequency"].caption
    assert "ranks.txt" in result.tables["frequency"].caption


def test_a_planted_relation_is_found(tmp_path: Path) -> None:
    file = tmp_path / "ranks.txt"
    file.write_text("".join(f"{token + 1} 5 {token}\n" for token in range(4)))

    def ratio(row: dict[str, Any]) -> float:
        return 0.5 - 0.1 * row["token_id"] + 0.01 * row["layer"]

    planted = made(["ATTN-W", "ATTN-N"], ratio, categories=("ordinary",) * 4, ranks=str(file))
    result = worked(mixing.section_5, planted)
    np.testing.assert_allclose(result.tables["frequency"].frame.iloc[:, 1:].to_numpy(float), -1)


def test_constant_ratios_have_no_correlation() -> None:
    result = worked(
        mixing.section_5, made(POST, lambda row: 0.5, categories=("cls", *["ordinary"] * 3))
    )
    assert result.tables["frequency"].text().iloc[0, 1:].tolist() == ["–"] * 4


def test_scatter_plot_has_a_panel_for_each_stage_of_the_layer(evidence: Evidence) -> None:
    drawn = worked(mixing.section_5, evidence).figures["frequency"].draw()
    titles = [axes.get_title(loc="left").split("   ")[0] for axes in drawn.axes]
    assert titles == ["ATTN-N", "ATTNRES-N", "ATTNRESLN-N", "ATTNRESLNFFRESLN-N"]
    labels = [text.get_text() for text in drawn.legends[0].get_texts()]
    assert labels == ["ordinary", "[CLS]", "[SEP]"]


def test_scatter_plot_of_a_large_corpus_is_a_sample(
    evidence: Evidence, finished: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mixing, "_POINTS", 60)
    figure = worked(mixing.section_5, evidence).figures["frequency"]
    total = len(occurrences(finished, "ATTN-N"))
    assert "Of more than 60 occurrences" in figure.caption
    points = sum(len(c.get_offsets()) for c in figure.draw().axes[0].collections)
    assert 20 < points < 120 < total


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        ("rank count id\n1 2 3\n", "line 1 of"),
        ("1 5 0\n\n2 4\n", "line 3 of"),
        ("1,5,0\n", "three whole numbers, rank count id"),
        ("0 5 1\n", "below 1"),
        ("1 5 7\n2 4 7\n", "gives id 7 a second rank"),
        ("\n", "has no line"),
        ("1 5 999999\n", "no rank for any subword"),
    ],
)
def test_wrong_rank_files_are_refused_in_one_line(
    evidence: Evidence, finished: Run, tmp_path: Path, contents: str, words: str
) -> None:
    file = tmp_path / "ranks.txt"
    file.write_text(contents)
    with pytest.raises(InputError) as error:
        worked(mixing.section_5, Evidence("letters", finished, settings=settings(ranks=str(file))))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["missing.txt", ""])
def test_rank_files_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="cannot read the ranks"):
        mixing.read_ranks(tmp_path / name)


# Sentence --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lens(tiny_bert: Path) -> Lens:
    return normlens.load(str(tiny_bert), device="cpu")


@pytest.fixture(scope="module")
def lens_of_pairs(tiny_bert: Path) -> Lens:
    """A lens whose tokenizer separates the texts of a pair."""
    lens = normlens.load(str(tiny_bert), device="cpu")
    lens.tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return lens


def at(folder: Path) -> Evidence:
    return Evidence("", None, folder, settings=settings())


def test_maps_of_a_given_pair(lens_of_pairs: Lens, tmp_path: Path) -> None:
    mixing.write_sentence(lens_of_pairs, settings(sentence="abc d | ef"), tmp_path)
    maps = normlens.open(tmp_path / mixing.SENTENCE)
    assert maps.text == ("abc d", "ef")
    assert maps.scopes == ["ATTN-W", "ATTNRES-W", "ATTN-N", "ATTNRESLN-N"]
    np.testing.assert_array_equal(maps["ATTN-N"], lens_of_pairs.maps(("abc d", "ef"))["ATTN-N"])


def test_shares_of_diagonal_and_special_tokens(lens: Lens, tmp_path: Path) -> None:
    mixing.write_sentence(lens, settings(sentence="abc d ef"), tmp_path)
    maps = normlens.open(tmp_path / mixing.SENTENCE)
    result = worked(mixing.example_sentence, at(tmp_path))
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


def test_figure_labels_tokens_and_shows_rows_that_sum_to_one(lens: Lens, tmp_path: Path) -> None:
    mixing.write_sentence(lens, settings(sentence="abc d"), tmp_path)
    drawn = worked(mixing.example_sentence, at(tmp_path)).figures["sentence"].draw()
    shown = [axes for axes in drawn.axes if axes.images]
    assert len(shown) == 2 * 4
    for axes in shown:
        np.testing.assert_allclose(axes.images[0].get_array().sum(axis=1), 1, rtol=1e-6)
    labels = [label.get_text() for label in shown[0].get_yticklabels()]
    assert labels == ["[CLS]", "a", "##b", "##c", "d", "[SEP]"]
    assert not shown[1].get_yticklabels()


def test_deep_models_are_thinned(tmp_path: Path, tiny: Any) -> None:
    model = tiny("gpt2", n_layer=30)
    maps = Lens(model).maps(input_ids=[5, 9, 11], scopes=["ATTN-W", "ATTN-N"])
    maps.save(tmp_path / mixing.SENTENCE)
    result = worked(mixing.example_sentence, at(tmp_path))
    assert len(result.tables["sentence"].frame) == 30
    assert list(result.tables["sentence"].frame) == ["layer", "ATTN-W diagonal", "ATTN-N diagonal"]
    assert "layers 1, 4, 6, 9, 12, 14, 17, 19, 22, 25, 27 and 30 of 30" in (
        result.figures["sentence"].caption
    )
    assert "grey" in result.figures["sentence"].caption
    drawn = result.figures["sentence"].draw()
    assert len([axes for axes in drawn.axes if axes.images]) == 12 * 2


def test_default_is_a_pair_only_where_pairs_are_parted(minilm: Any, lens: Lens) -> None:
    assert mixing.chosen_text(minilm, None) == mixing.PAIR
    assert mixing.chosen_text(lens, None) == mixing.SINGLE  # its tokenizer knows no pairs
    assert mixing.chosen_text(lens, "one text") == "one text"


@pytest.mark.parametrize(
    ("scopes", "last"),
    [
        (POST, "ATTNRESLN-N"),
        (PARALLEL, "ATTNFFRES-N"),
        (["ATTN-W", "ATTN-N", "ATTNLN-N", "ATTNLNRES-N", "ATTNLNRESFF-N"], "ATTNLNRES-N"),
    ],
)
def test_fourth_method_is_the_attention_block(scopes: list[str], last: str) -> None:
    assert mixing.methods(scopes)[-1] == last


def test_an_empty_part_of_a_pair_is_refused(lens_of_pairs: Lens, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="empty"):
        mixing.write_sentence(lens_of_pairs, settings(sentence="abc |"), tmp_path)


def test_no_maps_no_result(tmp_path: Path) -> None:
    assert mixing.example_sentence(at(tmp_path)) is None
