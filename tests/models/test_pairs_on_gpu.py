"""Encoder–decoders on a CUDA device: rectangular maps, both stacks, and a run of pairs."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from one_case import in_one_case
from reference import assert_maps_match, largest_error, pair_references

import normlens
from normlens.models.tiny import tiny_encoder_decoders, tiny_model

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
SHORT, LONG = [2, 5, 40, 12], [3, 9, 27, 14, 5, 33, 8, 51, 60]
FRAMES = torch.randn(6, 18, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
#: Sources and targets: more of one, more of the other, and more than a tile of either.
PAIRS = [(LONG, SHORT), (SHORT, LONG), (LONG * 4, LONG * 3 + SHORT)]
EXACT = {"precision": "float32"}


def given(family: str, source: list[int], target: list[int]) -> dict[str, Any]:
    """The arguments of `Lens.maps` for one pair."""
    heard = {"input_features": FRAMES} if family == "whisper" else {"input_ids": source}
    return {**heard, "decoder_input_ids": target}


def expected_of(model: torch.nn.Module, arguments: dict[str, Any]) -> Any:
    inputs = {name: torch.as_tensor(value)[None] for name, value in arguments.items()}
    return pair_references(copy.deepcopy(model).double(), inputs)


@in_one_case("family", tiny_encoder_decoders())
@in_one_case("pair", PAIRS[:2], ids=["longer source", "longer target"])
def test_float32_on_cuda_is_close_to_the_float64_reference(family, pair):
    model = tiny_model(family)
    arguments = given(family, *pair)
    encoder, decoder = expected_of(model, arguments)
    maps = normlens.load(model, device=DEVICE, tokenizer=False).maps(**arguments, **EXACT)
    assert maps.provenance["device"].startswith(DEVICE)
    assert_maps_match(maps, decoder, 1e-4)
    assert_maps_match(maps.encoder, encoder, 1e-4)
    assert maps.completeness <= 1e-4


@in_one_case("family", ["bart", "m2m_100", "t5"])
def test_ragged_batches_on_cuda_equal_one_by_one(family):
    lens = normlens.load(tiny_model(family), device=DEVICE, tokenizer=False)
    pad = lens.adapter.config.pad_token_id
    sides = []
    for rows in zip(*PAIRS, strict=True):
        width = max(map(len, rows))
        ids = [row + [pad] * (width - len(row)) for row in rows]
        mask = [[1] * len(row) + [0] * (width - len(row)) for row in rows]
        sides.append((ids, mask))
    (sources, source_mask), (targets, target_mask) = sides
    together = lens.maps(
        input_ids=sources,
        attention_mask=source_mask,
        decoder_input_ids=targets,
        decoder_attention_mask=target_mask,
        batch_size=len(PAIRS),
        **EXACT,
    )
    for found, pair in zip(together, PAIRS, strict=True):
        alone = lens.maps(**given(family, *pair), **EXACT)
        for one, other in ((found, alone), (found.encoder, alone.encoder)):
            for scope in other.scopes:
                assert largest_error(one[scope], other[scope]) < 1e-5, scope
