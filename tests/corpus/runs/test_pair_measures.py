"""Measures of encoder–decoders: both stacks, and the encoder's tokens as the decoder's sources."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pair_examples import fast_tokenizer, with_head
from scipy.stats import spearmanr

import normlens
from normlens.corpus import Run
from normlens.corpus.runs.folder import AllFailedError
from normlens.errors import InputError, NormLensError
from normlens.measures.maps import amplification
from normlens.studies.papers.reproduce import reproduce

pytest.importorskip("duckdb", reason="reading tables needs DuckDB")
#: "house" stands on both sides, and every letter several times.
PAIRS = [
    ("the house is small", "la house est petite"),
    ("don't stop .", "verte"),
    ("green", "la maison"),
]


@pytest.fixture(scope="module")
def lens() -> normlens.Lens:
    return normlens.load(with_head("bart").double(), fast_tokenizer())


@pytest.fixture(scope="module")
def made(lens, tmp_path_factory) -> Run:
    folder = tmp_path_factory.mktemp("pairs")
    lines = folder / "pairs.txt"
    lines.write_text("".join(f"{source} ||| {target}\n" for source, target in PAIRS))
    return normlens.run(
        lens,
        lines,
        folder / "run",
        measures="similarity,mixing,norms,amplification,explanations",
        block_size=2,
    )


@pytest.fixture(scope="module")
def maps(lens) -> list[Any]:
    return lens.maps([tuple(map(str.split, pair)) for pair in PAIRS])


def by_stack(maps: Any) -> Iterator[tuple[str, Any]]:
    yield "encoder", maps.encoder
    yield "decoder", maps


def test_similarity_compares_the_sources_that_scopes_have(made, maps):
    rows = made.table("similarity").set_index(["index", "stack", "layer"]).sort_index()
    for index, one in enumerate(maps):
        for stack, stacked in by_stack(one):
            for layer in stacked.layers:
                found = rows.loc[index, stack, layer].set_index(["scope_a", "scope_b"])["rho"]
                assert len(found) == len(list(combinations(stacked.scopes, 2)))
                for (a, b), rho in found.items():
                    allowed = stacked.pairs_of(a, b)[layer]
                    values = [stacked.at(scope, layer)[allowed] for scope in (a, b)]
                    expected = spearmanr(*values).statistic
                    assert rho == pytest.approx(expected, abs=1e-12, nan_ok=True), (stack, a, b)
    # Before the cross-attention nothing of the source is there, and its columns do not count.
    one = maps[0]
    assert not one.pairs_of("ATTN-W", "ATTN-N")[1][:, : len(one.encoder.targets)].any()


def test_mixing_has_a_row_for_each_token_of_both_stacks(made, maps):
    rows = made.table("mixing")
    for index, one in enumerate(maps):
        for stack, stacked in by_stack(one):
            here = rows[(rows["index"] == index) & (rows["stack"] == stack)]
            for scope in stacked.scopes:
                found = here[here["scope"] == scope].sort_values(["layer", "position"])
                assert found["ratio"].to_numpy() == pytest.approx(stacked.mixing[scope].ravel())
                assert found["token_id"].tolist() == len(stacked.layers) * stacked.token_ids


def test_norms_are_of_both_stacks(lens, made):
    one = lens.maps(*map(str.split, PAIRS[0]), statistics=True)
    norms = made.sql('SELECT * FROM norms WHERE "index" = 0')
    dimensions = made.table("norms_dimensions")
    tokens = made.sql("SELECT sum(tokens) AS decoder, sum(source_tokens) AS encoder FROM sequences")
    for stack, stacked in by_stack(one):
        found = norms[norms["stack"] == stack].sort_values("layer")
        expected = stacked.statistics["ff_output_norm"].mean(axis=1)
        assert found["ff_output_norm"].to_numpy() == pytest.approx(expected)
        here = dimensions[dimensions["stack"] == stack]
        assert len(here) == len(stacked.layers) * stacked.statistics["gamma"].shape[1]
        assert set(here["count"]) == {tokens[stack].item()}
        assert set(here["sequences"]) == {len(PAIRS)}


def blocks(maps: Any) -> Iterator[tuple[str, Any, slice, list[str], list[str]]]:
    """Each stack's maps, the columns that count, and the tokens of sources and targets."""
    encoder, m = maps.encoder, len(maps.encoder.raw_tokens)
    yield "encoder", encoder, slice(None), encoder.raw_tokens, encoder.raw_tokens
    yield "decoder", maps, slice(m, None), maps.raw_tokens, maps.raw_tokens
    yield "cross", maps, slice(0, m), encoder.raw_tokens, maps.raw_tokens


def loops(maps: list[Any], scope_pairs: dict[str, list[tuple[str, str]]]) -> pd.DataFrame:
    """FF-amp of every pair that counts, one by one."""
    rows = []
    for index, one in enumerate(maps):
        for stack, stacked, columns, sources, targets in blocks(one):
            for (before, after), layer in product(scope_pairs[stack], stacked.layers):
                difference = amplification(stacked.at(before, layer), stacked.at(after, layer))
                allowed = stacked.allowed[layer][:, columns]
                for i, j in zip(*np.nonzero(allowed), strict=True):
                    if stack == "cross" or i != j:
                        value = difference[:, columns][i, j]
                        place = (index, stack, before, after, layer, i, j)
                        rows.append((*place, targets[i], sources[j], value))
    names = "index stack before after layer target source target_token source_token score"
    return pd.DataFrame(rows, columns=names.split())


OF_DECODER = [
    ("ATTNRESLNCROSSRESLN-N", "ATTNRESLNCROSSRESLNFF-N"),
    ("ATTNRESLNCROSSRES-N", "ATTNRESLNCROSSRESLNFFRESLN-N"),
]
DEFAULT = {
    "encoder": [("ATTNRESLN-N", "ATTNRESLNFF-N"), ("ATTNRES-N", "ATTNRESLNFFRESLN-N")],
    "decoder": OF_DECODER,
    "cross": OF_DECODER,
}


def test_amplification_has_pairs_of_each_stack_and_of_both(made, maps):
    expected = loops(maps, DEFAULT)
    keys = ["index", "stack", "before", "after", "layer", "target", "source"]
    sample = made.table("amplification_sample")
    joined = sample.merge(expected, on=keys, suffixes=("", "_expected"))
    assert len(joined) == len(sample) == len(expected)
    assert joined["score"].to_numpy() == pytest.approx(joined["score_expected"], abs=1e-12)
    assert sample[sample["stack"] == "cross"]["distance"].isna().all()
    near = sample[sample["stack"] != "cross"]
    assert (near["distance"] == (near["target"] - near["source"]).abs()).all()

    types = ["stack", "before", "after", "layer", "source_token", "target_token"]
    summed = made.table("amplification_pairs").groupby(types)[["count", "sum"]].sum()
    looped = expected.groupby(types)["score"].agg(["count", "sum"])
    same = {"check_dtype": False, "check_index_type": False, "rtol": 0, "atol": 1e-12}
    pd.testing.assert_frame_equal(summed, looped, **same)

    per_text = made.table("amplification_distance").groupby(["index", "stack", "layer"])
    assert per_text["sum"].sum().to_numpy() == pytest.approx(
        expected.groupby(["index", "stack", "layer"])["score"].sum(), abs=1e-12
    )


def test_tokens_of_both_texts_are_related_where_they_are_the_same(made):
    rows = made.sql("SELECT * FROM amplification_pairs WHERE stack = 'cross'")
    same = rows[rows["source_token"] == rows["target_token"]]
    ordinary = ~same["source_token"].isin(["<s>", "</s>"])
    assert ordinary.any()
    assert set(same[ordinary]["relation"]) == {"same_type"}
    others = rows[rows["relation"] == "other"]
    assert (others["source_token"] != others["target_token"]).all()
    assert rows["sum_distance"].isna().all()


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"exclude_same_type": True}, lambda row: row.source_token != row.target_token),
        (
            {"exclude_special": True},
            lambda row: not {row.source_token, row.target_token} & {"<s>", "</s>"},
        ),
    ],
)
def test_options_of_amplification_hold_for_both_texts(lens, maps, tmp_path, options, kept):
    lines = tmp_path / "pairs.txt"
    lines.write_text("".join(f"{source} ||| {target}\n" for source, target in PAIRS))
    chosen = {"amplification": {"pairs": "LN1:FF,CROSS:LN3", **options}}
    run = normlens.run(lens, lines, tmp_path / "run", measures="amplification", settings=chosen)
    # A short name means a scope of each stack that has one; parts of other texts have no rows.
    pairs = {
        "encoder": [("ATTNRESLN-N", "ATTNRESLNFF-N")],
        "decoder": [("ATTNRESLN-N", "ATTNRESLNCROSSRESLNFF-N")],
        "cross": [("ATTNRESLNCROSS-N", "ATTNRESLNCROSSRESLNFFRESLN-N")],
    }
    expected = loops(maps, pairs)
    expected = expected[[kept(row) for row in expected.itertuples()]]
    keys = ["index", "stack", "before", "after", "layer", "target", "source"]
    sample = run.table("amplification_sample")
    joined = sample.merge(expected, on=keys, suffixes=("", "_expected"))
    assert len(joined) == len(sample) == len(expected)
    assert joined["score"].to_numpy() == pytest.approx(joined["score_expected"], abs=1e-12)


def test_a_scope_that_no_stack_has_fails_every_sequence(lens, tmp_path):
    lines = tmp_path / "pairs.txt"
    lines.write_text("the house ||| la maison\n")
    chosen = {"amplification": {"pairs": "LN1:LN7"}}
    with pytest.raises(AllFailedError, match="LN7"):
        normlens.run(lens, lines, tmp_path / "run", measures="amplification", settings=chosen)


def test_every_token_of_a_target_is_explained(lens, made):
    scores, tokens = made.table("explanations"), made.table("explanation_tokens")
    components, bias = made.table("explanation_components"), made.table("explanation_bias")
    config = lens.model.config
    heads_of = {
        "encoder": config.encoder_attention_heads,
        "decoder": config.decoder_attention_heads,
    }
    for index, pair in enumerate(PAIRS):
        source, target = map(str.split, pair)
        expected = lens.explain(source, target=target, token="all", flow=False)
        here = scores[scores["index"] == index]
        assert here["target"].tolist() == [why.target for why in expected]
        for why, row in zip(expected, here.itertuples(), strict=True):
            shares = why.shares
            found = [row.source, row.prefix, row.source_share, row.source_share_absolute]
            assert found == pytest.approx(
                [shares.source, shares.prefix, shares.source_share, shares.source_share_absolute]
            )
            at = {"index": index, "read_at": why.position}
            assert row.read_at == why.position
            for part, expected_part in (("source", why.source), ("prefix", why.prefix)):
                own = _at(tokens, at, part=part)
                assert own["position"].tolist() == list(range(len(expected_part)))
                assert own["token"].tolist() == expected_part.tokens
                assert own["contribution"].to_numpy() == pytest.approx(expected_part.contributions)
            total = _at(tokens, at)["contribution"].sum() + _at(bias, at)["value"].sum()
            assert total == pytest.approx(row.value, abs=1e-10)
            for place in range(len(why.nodes)):
                stack, layer = why.stack_of(place)
                for name in ("ATTN", "CROSS", "FF", "RES"):
                    own = _at(components, at, stack=stack, layer=layer, component=name)
                    if name == "CROSS" and stack == "encoder":
                        assert own.empty
                        continue
                    value = why.components[place, why.component_names.index(name)].sum()
                    assert own["value"].sum() == pytest.approx(value, abs=1e-10)
                    by_head = name in ("ATTN", "CROSS")
                    assert len(own) == (heads_of[stack] if by_head else 1)
                    assert own["head"].notna().all() == by_head


def _at(table: pd.DataFrame, *wheres: dict[str, Any], **columns: Any) -> pd.DataFrame:
    for where in (*wheres, columns):
        for name, value in where.items():
            table = table[table[name] == value]
    return table


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"target": "la"}, "the target of an encoder–decoder is the text beside its source"),
        ({"contrast": "la"}, "choose it by explanations.position"),
    ],
)
def test_questions_about_one_text_are_refused_before_the_run(lens, tmp_path, settings, reason):
    lines = tmp_path / "pairs.txt"
    lines.write_text("the house ||| la maison\n")
    with pytest.raises(InputError, match=reason) as error:
        normlens.run(
            lens,
            lines,
            tmp_path / "run",
            measures="explanations",
            settings={"explanations": settings},
        )
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run" / "manifest.json").exists()


def test_one_token_is_compared_with_another(lens, tmp_path: Path):
    lines = tmp_path / "pairs.txt"
    lines.write_text("the house ||| la maison\n")
    run = normlens.run(
        lens,
        lines,
        tmp_path / "run",
        measures="explanations",
        settings={"explanations": {"position": 0, "contrast": 7}},
    )
    (row,) = run.table("explanations").itertuples()
    why = lens.explain(["the", "house"], target=["la", "maison"], token=0, contrast=7)
    assert (row.target, row.contrast_id) == (why.target, 7)
    assert row.value == pytest.approx(why.value)


def test_papers_refuse_two_stacks_in_one_line(lens, tmp_path: Path):
    pytest.importorskip("matplotlib", reason="reports need Matplotlib")
    pytest.importorskip("jinja2", reason="reports need Jinja")
    with pytest.raises(NormLensError, match="is an encoder–decoder") as error:
        reproduce("ff", lens, "sample", tmp_path / "out")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()
