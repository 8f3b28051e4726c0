"""Explanations with queries and keys in the place of attention weights, against those with α."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from heads import in_float64
from largest_tensor import LargestTensor
from one_case import in_one_case

import normlens
from normlens.errors import InputError, NormLensError, UnsupportedModelError
from normlens.explain import explainer
from normlens.frozen import attention, feedforward
from normlens.models.tiny import tiny_encoder_decoders, tiny_families, tiny_model
from normlens.trace.run import can_keep_queries, fast_attention

#: Model types whose attention does not go through transformers' interface; α is formed for them.
EAGER = {
    *("bloom", "codegen", "deberta", "deberta-v2", "falcon", "gpt_neo", "gptj", "megatron-bert"),
    *("mpnet", "mpt", "openai-gpt", "rembert", "roformer", "squeezebert"),
}
TEXTS = [[5, 17, 31, 8, 44, 23, 12], [5, 9, 33, 2]]


def begin_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep queries and keys of every text, and form weights of a few tokens at a time."""
    monkeypatch.setattr(explainer, "ALPHA_BYTES", 0)
    monkeypatch.setitem(attention._TILE, "cpu", 60)
    monkeypatch.setitem(feedforward.NEURONS, "cpu", 100)


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda: begin_fast(monkeypatch)


def question(lens: normlens.Lens) -> dict[str, Any]:
    if lens.two_stacks:
        return {"input_ids": TEXTS[0], "decoder_input_ids": [2, 7, 9, 30], "token": 2}
    direction = np.random.default_rng(0).standard_normal(lens.layers[-1].width)
    return {"input_ids": TEXTS, "position": 3, "layer": lens.n_layers - 1, "direction": direction}


#: Whisper hears; its attention is BART's.
FAMILIES = [each for each in (*tiny_families(), *tiny_encoder_decoders()) if each != "whisper"]


@in_one_case("family", FAMILIES)
def test_both_ways_agree(family, monkeypatch):
    model = tiny_model(family) if family in tiny_families() else tiny_with_head(family)
    lens = normlens.load(model.double(), tokenizer=False)
    assert can_keep_queries(lens.layers) == (family not in EAGER)
    if family in EAGER:
        return
    with in_float64():
        asked = question(lens)
        formed = lens.explain(heads=True, **asked)
        begin_fast(monkeypatch)
        try:
            kept = lens.explain(heads=True, **asked)
        except UnsupportedModelError:  # of transformers 5.17
            assert family == "umt5"
            return
    pairs = zip(
        *[each if isinstance(each, list) else [each] for each in (formed, kept)], strict=True
    )
    for one, other in pairs:
        for name in ("contributions", "nodes", "components", "heads", "head_flow"):
            expected = getattr(one, name)
            atol = 1e-9 * np.nanmax(np.abs(expected))
            np.testing.assert_allclose(getattr(other, name), expected, rtol=0, atol=atol)


def tiny_with_head(family: str) -> Any:
    from transformers import AutoModelForSeq2SeqLM

    from normlens.models.tiny import scramble, tiny_config

    model = AutoModelForSeq2SeqLM.from_config(tiny_config(family)).eval()
    scramble(model)
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_tensor_of_all_pairs_exists(fast, dtype):
    """Neither α, which has h · n² numbers, nor anything else of that size.

    Nor where half precision is compared with float32.
    """
    model = tiny_model("llama", max_position_embeddings=512).to(dtype)
    lens = normlens.load(model, tokenizer=False)
    ids = [5 + k % 50 for k in range(400)]
    asked = {"input_ids": ids, "position": 3, "layer": 1, "direction": [1.0] * 16, "flow": False}
    largest = []
    for begin in (lambda: None, fast):
        begin()
        lens.float32_check.compared.clear()
        with LargestTensor() as watched:
            lens.explain(**asked)
        largest.append(watched.largest)
    assert largest[0] >= 4 * 400**2
    assert largest[1] < 400**2 / 2


def test_the_model_keeps_its_own_attention(fast, monkeypatch):
    """After a call, after an error, and in other threads while a call runs."""
    lens = normlens.load(tiny_model("llama"), tokenizer=False)
    config, elsewhere = lens.model.config, list[str]()
    lens.model.set_attn_implementation("sdpa")
    fast()

    def look(*_: Any) -> None:
        thread = threading.Thread(target=lambda: elsewhere.append(config._attn_implementation))
        thread.start()
        thread.join()

    lens.explain(progress=look, **question(lens))
    assert elsewhere
    assert set(elsewhere) == {"sdpa"}
    assert config._attn_implementation == "sdpa"

    def stop(*_: Any) -> None:
        raise NormLensError("stop")

    with pytest.raises(NormLensError):
        lens.explain(progress=stop, **question(lens))
    assert config._attn_implementation == "sdpa"


@pytest.mark.gpu
@in_one_case("masked", [False, True])
@in_one_case("dtype", [torch.float16, torch.bfloat16])
def test_kernels_spread_gradients_as_tiles_do(dtype, masked):
    """With the log-sum-exp of the model's own attention; rows that see nothing are padding."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, h, 300, 64, dtype=dtype).cuda() for h in (8, 2, 2))
    g = torch.randn(3, 2, 8, 300, 64).cuda()
    module = torch.nn.Module()
    module.num_key_value_groups, module.is_causal = 4, True
    mask = None
    if masked:
        g[..., 290:, :] = 0
        mask = torch.ones(300, 300, dtype=torch.bool).tril().expand(2, 1, 300, 300).cuda().clone()
        mask[:, :, 290:] = False
        mask[..., 290:] = False
    with torch.no_grad():
        _, half = fast_attention(module, query, key, value, mask, scaling=0.125)
    assert half.log_sums is not None
    assert not half.output.requires_grad
    exact = replace(half, query=query.double(), key=key.double(), dtype=torch.float64)
    expected = exact.spread(g.double(), 2)
    for each in (half, replace(half, log_sums=None)):
        error = (each.to(torch.float32).spread(g, 2).double() - expected).norm() / expected.norm()
        assert error < 4e-3


@pytest.mark.gpu
def test_the_first_call_of_a_long_text_forms_no_weights():
    """Layers run again in float32, for which PyTorch has no kernel by groups of heads."""
    config = {"hidden_size": 512, "num_attention_heads": 16, "num_key_value_heads": 4}
    model = tiny_model("llama", max_position_embeddings=16384, **config).bfloat16().cuda()
    lens = normlens.load(model, tokenizer=False)
    ids = [5 + k % 50 for k in range(16384)]
    torch.cuda.reset_peak_memory_stats()
    lens.explain(input_ids=ids, position=3, layer=1, direction=[1.0] * 512, flow=False)
    assert torch.cuda.max_memory_allocated() < 16 * 16384**2


def test_the_strongest_edges_are_those_of_the_flow_map(fast, tmp_path, monkeypatch):
    """Of long texts and of a batch, kept in a file and folded in a picture."""
    lens = normlens.load(tiny_model("llama"), tokenizer=False)
    asked = question(lens)
    whole = lens.explain(flow=True, **asked)
    fast()
    for exact, found in zip(whole, lens.explain(flow=9, **asked), strict=True):
        found.save(tmp_path / "why.safetensors")
        found = normlens.Explanation.load(tmp_path / "why.safetensors")
        assert not found.flows
        for layer, flow in enumerate(exact.flow):
            strongest = np.sort(np.abs(flow), axis=None)[-9:]
            np.testing.assert_allclose(np.sort(np.abs(found.edge_values[layer])), strongest, 1e-4)
            i, j = found.edges[layer].T
            np.testing.assert_allclose(found.edge_values[layer], flow[i, j], rtol=1e-4)
            assert found.edge_totals[layer] == pytest.approx(np.abs(flow).sum(), rel=1e-4)
        monkeypatch.setattr("normlens.figures.explanations.ROWS", 2)
        labels = [label.get_text() for label in found.plot_flow().axes[0].get_yticklabels()]
        assert len(labels) == 4
        assert labels[2] == f"{len(exact.raw_tokens) - 2} other tokens"
    with pytest.raises(InputError):
        lens.explain(flow=-1, **asked)
    two = normlens.load(tiny_with_head("bart"), tokenizer=False)
    for edges in (1, 9):
        with pytest.raises(InputError):
            two.explain(flow=edges, **question(two))


def test_edges_by_words_end_at_the_words_of_their_tokens(smollm2):
    why = smollm2.explain("unbelievably long words", flow=5)
    words, members = why.words(), why.axis.word_groups()
    assert len(members) < len(why.raw_tokens)
    for before, after in zip(why.edges.reshape(-1), words.edges.reshape(-1), strict=True):
        assert before in members[after]


def test_a_decoder_that_looks_ahead_is_refused(fast, monkeypatch):
    lens = normlens.load(tiny_model("llama"), tokenizer=False)
    fast()
    init = attention.QueryKey.__init__
    monkeypatch.setattr(
        attention.QueryKey,
        "__init__",
        lambda *args, **given: init(*args, **{**given, "causal": False}),
    )
    with pytest.raises(UnsupportedModelError):
        lens.explain(**question(lens) | {"input_ids": TEXTS[0]})
