"""Encoder–decoders on a CUDA device: rectangular maps, both stacks, and a run of pairs."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from one_case import in_one_case
from pair_examples import fast_tokenizer, with_head
from reference import assert_maps_match, largest_error, pair_references

import normlens
from normlens.corpus import Run
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


@in_one_case("pair", PAIRS, ids=["longer source", "longer target", "both long"])
@in_one_case("family", ["bart", "t5"])
def test_wider_models_and_a_prepared_lens(family, pair):
    sizes = {
        "bart": {"d_model": 64, "encoder_ffn_dim": 160, "decoder_ffn_dim": 160},
        "t5": {"d_model": 64, "d_ff": 160, "d_kv": 16},
    }[family]
    model = tiny_model(family, **sizes)
    arguments = given(family, *pair)
    encoder, decoder = expected_of(model, arguments)
    lens = normlens.load(model, device=DEVICE, tokenizer=False)
    # T5 does not scale its scores: random ones are large, and so is their rounding in float32.
    tolerance = 1e-3 if family == "t5" else 1e-4
    for maps in (lens.maps(**arguments, **EXACT), lens.prepare().maps(**arguments, **EXACT)):
        assert_maps_match(maps, decoder, tolerance)
        assert_maps_match(maps.encoder, encoder, tolerance)


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


@in_one_case("family", ["bart", "t5", "whisper"])
@in_one_case(
    "options",
    [{"origin": "input"}, {"nonlinearity": "shapley", "samples": 8}, {"heads": True, **EXACT}],
    ids=["origin", "shapley", "heads"],
)
def test_options_on_cuda_equal_the_cpu(family, options):
    """Orders of players are drawn on the CPU, so the seed means the same everywhere."""
    model, arguments = tiny_model(family), given(family, LONG, SHORT)
    on_cpu = {name: value for name, value in options.items() if name != "precision"}
    expected = normlens.load(copy.deepcopy(model), tokenizer=False).maps(**arguments, **on_cpu)
    maps = normlens.load(model, device=DEVICE, tokenizer=False).maps(**arguments, **options)
    for one, other in ((maps, expected), (maps.encoder, expected.encoder)):
        for scope in other.scopes:
            assert largest_error(one[scope], other[scope]) < 1e-4, scope
        for scope in other.heads:
            assert largest_error(one.heads[scope], other.heads[scope]) < 1e-4, scope


@in_one_case("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
@in_one_case("family", ["bart", "mbart", "marian"])
def test_half_precision_on_cuda(family, dtype):
    model, arguments = tiny_model(family), given(family, LONG, SHORT)
    expected = normlens.load(copy.deepcopy(model), tokenizer=False).maps(**arguments)
    lens = normlens.load(model, device=DEVICE, dtype=dtype, tokenizer=False)
    maps = lens.maps(**arguments)
    tolerance = 1e-2 if dtype == torch.float16 else 8e-2
    for one, other in ((maps, expected), (maps.encoder, expected.encoder)):
        for scope in other.scopes:
            assert largest_error(one[scope], other[scope]) < tolerance, scope


def test_the_rectangular_tensors_never_reach_the_device():
    """Peak memory stays below one float32 tensor of targets × sources × d elements."""
    n, d = 384, 128
    sizes = {"d_model": d, "encoder_ffn_dim": 256, "decoder_ffn_dim": 256}
    model = tiny_model("bart", max_position_embeddings=n + 8, **sizes)
    lens = normlens.load(model, device=DEVICE, tokenizer=False)
    ids = [3 + index % 60 for index in range(n)]
    arguments = given("bart", ids, [2, *ids[1:]])
    lens.maps(**arguments)  # libraries take their workspaces on the first call
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    lens.maps(**arguments)
    assert torch.cuda.max_memory_allocated() - before < 4 * n * 2 * n * d


def rows_of(run: Run, table: str) -> Any:
    """A table's rows, read without a database."""
    files = sorted(Path(run.folder.url).glob(f"tables/{table}/*.parquet"))
    assert files
    return pa.concat_tables([pq.read_table(file) for file in files]).to_pandas()


def test_a_run_of_pairs_on_cuda_has_the_numbers_of_the_cpu(tmp_path: Path):
    """On a GPU maps are ranked where they lie."""
    lines = tmp_path / "pairs.txt"
    texts = [("the house is small", "la maison est petite"), ("don't stop .", "verte et petite")]
    lines.write_text("".join(f"{source} ||| {target}\n" for source, target in 4 * texts))
    measures = "similarity,mixing,norms,amplification,explanations"
    runs = [
        normlens.run(
            normlens.load(with_head("bart"), fast_tokenizer(), device=device),
            lines,
            tmp_path / device,
            measures=measures,
        )
        for device in ("cpu", DEVICE)
    ]
    for table, keys, values in (
        ("similarity", ["index", "stack", "layer", "scope_a", "scope_b"], ["rho"]),
        ("mixing", ["index", "stack", "layer", "scope", "position"], ["ratio"]),
        ("norms", ["index", "stack", "layer"], ["ff_output_norm", "bypassed_norm"]),
        ("explanations", ["index", "read_at"], ["value", "source", "prefix"]),
    ):
        expected, found = (
            rows_of(run, table).sort_values(keys).reset_index(drop=True) for run in runs
        )
        assert found[keys].astype(str).equals(expected[keys].astype(str)), table
        np.testing.assert_allclose(
            found[values].to_numpy(float), expected[values].to_numpy(float), rtol=2e-3, atol=2e-3
        )
