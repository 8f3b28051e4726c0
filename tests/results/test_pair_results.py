"""The maps of both stacks of an encoder–decoder: kept, cut down, measured and taken away."""

from __future__ import annotations

import numpy as np
import pytest
from one_case import in_one_case
from pair_examples import fast_tokenizer, with_head
from scipy.stats import spearmanr

import normlens
from normlens.errors import InputError
from normlens.measures.maps import normalise
from normlens.results.words import by_stack, choose_in_stacks

SOURCE, TARGET = "the house is small and green", "la maison est petite"
DEEPEST = "ATTNRESLNCROSSRESLNFFRESLN-N"


@pytest.fixture(scope="module")
def lens() -> normlens.Lens:
    return normlens.load(with_head("bart"), fast_tokenizer())


@pytest.fixture(scope="module")
def maps(lens) -> normlens.Maps:
    return lens.maps(SOURCE, TARGET, heads=True, statistics=True)


# Files --------------------------------------------------------------------------------------------


@in_one_case(
    "changed",
    [
        lambda maps: maps.words(),
        lambda maps: maps.choose(1, ["CROSS-N", "FF"]),
        lambda maps: maps.sources_of("encoder"),
        lambda maps: maps.rollout(DEEPEST),
        lambda maps: maps.encoder,
    ],
    ids=["whole", "words", "ordinary", "chosen", "sources", "rollout", "decoder", "encoder"],
)
def test_a_file_holds_both_stacks(changed, maps, tmp_path):
    some = changed(maps)
    found = normlens.open(some.save(tmp_path / "maps.safetensors"))
    assert found == some
    assert (found.provenance, found.scopes) == (some.provenance, some.scopes)


# Comparing and choosing ---------------------------------------------------------------------------


def test_both_stacks_are_cut_down_alike(maps):
    some = choose_in_stacks(maps, [-1], ["FF", "CROSS-N"])
    assert (some.layers, some.encoder.layers) == ([2], [1])
    assert some.scopes == ["ATTNRESLNCROSS-N", "ATTNRESLNCROSSRESLNFF-N"]
    assert some.encoder.scopes == ["ATTNRESLNFF-N"]
    assert choose_in_stacks(maps, 2).encoder is None  # the encoder has two layers
    assert choose_in_stacks(maps, scopes="ATTNRESLNFF-N").stack == "encoder"
    assert choose_in_stacks(maps, stack="encoder") == maps.encoder
    assert choose_in_stacks(maps) == maps
    assert by_stack(maps, "decoder") == [maps.decoder]


# Measures -----------------------------------------------------------------------------------------


def test_similarity_is_over_the_pairs_that_either_scope_has_parts_of(maps):
    other = np.array(maps.source_sequences) == "encoder"
    columns = {
        ("CROSS-W", "CROSS-N"): other,
        ("ATTN-W", "ATTN-N"): ~other,
        ("LN2", "FF"): other | True,
    }
    for (a, b), shown in columns.items():
        found = maps.similarity(a, b)
        for layer in range(3):
            mask = maps.allowed[layer] & shown
            expected = spearmanr(maps[a][layer][mask], maps[b][layer][mask]).statistic
            assert found[layer] == pytest.approx(expected)


def test_mixing_counts_the_tokens_of_both_sequences(lens):
    """Exactly for weights, whose parts are numbers; within its bounds for norms."""
    maps = lens.maps(SOURCE, TARGET)
    own = maps["ATTN-W"][:, maps.is_same_token]
    np.testing.assert_allclose(maps.mixing_ratio("ATTN-W"), 1 - own, atol=1e-6)
    # Nothing of a target itself is behind the attention to the encoder.
    np.testing.assert_array_equal(maps.mixing_ratio("CROSS-N"), 1)
    np.testing.assert_array_equal(maps.mixing_ratio("CROSS-W"), 1)
    # A sum's norm is at most the sum of norms, and the target's own part is on the map.
    others = np.where(maps.is_same_token, 0, maps["RES2"]).sum(-1)
    most = others / (others + maps["RES2"][:, maps.is_same_token])
    assert (maps.mixing_ratio("RES2") <= most + 1e-6).all()


# Rollout ------------------------------------------------------------------------------------------


@in_one_case(
    ("scope", "of_encoder"),
    [("ATTNRESLNCROSSRES-N", "ATTNRES-N"), ("FF", "ATTNRESLNFF-N"), (DEEPEST, "LN2")],
)
def test_a_rollout_goes_through_both_stacks(scope, of_encoder, maps):
    """Against whole matrices of both sequences, multiplied layer by layer."""
    k, n = len(maps.encoder.tokens), len(maps.tokens)
    state = np.eye(k + n)  # rows: the vectors of both sequences, columns: their input tokens
    for layer in normalise(maps.encoder[of_encoder].astype(float), "target"):
        step = np.eye(k + n)
        step[:k, :k] = layer
        state = step @ state
    rolled = maps.rollout(scope)
    found = rolled.arrays[rolled.scopes[0]]
    for number, layer in enumerate(normalise(maps[scope].astype(float), "target")):
        step = np.eye(k + n)
        step[k:] = layer
        state = step @ state
        np.testing.assert_allclose(found[number], state[k:], atol=1e-9)
    np.testing.assert_allclose(found.sum(-1), 1)
    np.testing.assert_array_equal(rolled.allowed, maps.allowed)
    assert rolled.provenance["rollout"]["encoder"] == rolled.encoder.scopes[0]
    np.testing.assert_array_equal(
        rolled.encoder[of_encoder], maps.encoder.rollout(of_encoder)[of_encoder]
    )


@in_one_case(
    "rolled",
    [
        lambda lens, maps: maps.rollout("ATTN-N"),
        lambda lens, maps: maps.rollout("CROSS-N"),
        lambda lens, maps: maps.decoder.rollout("FF"),
        lambda lens, maps: maps.words().rollout("FF"),
        lambda lens, maps: maps.sources_of("encoder").rollout("FF"),
        lambda lens, maps: maps.choose([1, 2]).rollout("FF"),
        lambda lens, maps: lens.maps(SOURCE, TARGET, layers=0).rollout("FF"),
    ],
)
def test_rollouts_that_would_be_wrong(rolled, lens, maps):
    with pytest.raises(InputError):
        rolled(lens, maps)


# Taking away --------------------------------------------------------------------------------------


def test_a_table_has_both_stacks(maps):
    table = maps.to_pandas()
    arrays = [*maps.arrays.values(), *maps.encoder.arrays.values()]
    assert len(table) == sum(array.size for array in arrays)
    assert table["stack"].unique().tolist() == ["encoder", "decoder"]
    for one in (maps.encoder, maps.decoder):
        rows = table[table["stack"] == one.stack]
        for scope in one.scopes:
            found = rows[rows["scope"] == scope]
            np.testing.assert_array_equal(found["value"], one[scope].ravel())
            columns = found["source_sequence"].iloc[: len(one.sources)].tolist()
            assert columns == (one.source_sequences or ["encoder"] * len(one.sources))
            assert found["source_token"].iloc[: len(one.sources)].tolist() == one.source_tokens
