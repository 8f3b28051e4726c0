from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from frame_runs import FrameRun, evidence_of

from normlens.errors import InputError
from normlens.lens import Lens
from normlens.measures.tensors import expansion_rates
from normlens.models.tiny import tiny_families
from normlens.studies.papers import mixing
from normlens.studies.papers.mixing import expansion_rate
from normlens.studies.papers.reproduce import write_from_model


def linear(module: Any) -> tuple[np.ndarray, np.ndarray]:
    weight = module.weight.detach().double().numpy()
    if type(module).__name__ != "Conv1D":
        weight = weight.T
    bias = np.zeros(weight.shape[1])
    return weight, bias if module.bias is None else module.bias.detach().double().numpy()


def fused(module: Any, pick: Any) -> tuple[np.ndarray, np.ndarray]:
    weight, bias = linear(module)
    return pick(weight), pick(bias)


def interleaved(heads: int) -> Any:
    """Columns of the values where each head has its query, key and value in turn."""
    return lambda a: np.concatenate(
        [part[..., 2 * part.shape[-1] // 3 :] for part in np.split(a, heads, axis=-1)], axis=-1
    )


#: The value and output projections of a family's layer, as the model itself holds them.
PROJECTIONS = {
    "bert": lambda m, k: (
        linear(m.encoder.layer[k].attention.self.value),
        linear(m.encoder.layer[k].attention.output.dense),
    ),
    "gpt2": lambda m, k: (
        fused(m.h[k].attn.c_attn, lambda a: a[..., 32:48]),
        linear(m.h[k].attn.c_proj),
    ),
    "gpt_neox": lambda m, k: (
        fused(m.layers[k].attention.query_key_value, interleaved(4)),
        linear(m.layers[k].attention.dense),
    ),
    "llama": lambda m, k: (
        linear(m.layers[k].self_attn.v_proj),
        linear(m.layers[k].self_attn.o_proj),
    ),
}


def homogeneous(weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """For rows (x, 1): [[W, 0], [b, 1]]."""
    rows, columns = weight.shape
    matrix = np.zeros((rows + 1, columns + 1))
    matrix[:rows, :columns], matrix[rows, :columns], matrix[rows, columns] = weight, bias, 1
    return matrix


def per_head(value: tuple[np.ndarray, np.ndarray], heads: int, d_head: int) -> list[np.ndarray]:
    """Each head's homogeneous value matrix; neighbouring heads share a group's."""
    weight, bias = value
    groups = weight.shape[1] // d_head
    own = [slice(d_head * (h * groups // heads), None) for h in range(heads)]
    return [homogeneous(weight[:, s][:, :d_head], bias[s][:d_head]) for s in own]


@pytest.mark.parametrize("family", sorted(PROJECTIONS))
def test_rate_is_that_of_the_explicit_homogeneous_matrices(family, tiny):
    model, heads = tiny(family), 4
    expected = []
    for k in range(2):
        value, (w_out, b_out) = PROJECTIONS[family](model, k)
        d = w_out.shape[1]
        d_head = w_out.shape[0] // heads
        whole = np.zeros((d + 1, d + 1))
        for h, matrix in enumerate(per_head(value, heads, d_head)):
            rows = slice(h * d_head, (h + 1) * d_head)
            # The output bias is added once, the 1 of the homogeneous form is kept once.
            output = homogeneous(w_out[rows], b_out if h == 0 else 0 * b_out)
            output[-1, -1] = h == 0
            whole += matrix @ output
        singular = np.linalg.svd(whole, compute_uv=False)
        expected.append(np.sqrt((singular**2).sum() / (d + 1)))
    assert expansion_rates(Lens(model)) == pytest.approx(expected, rel=1e-12)


def test_published_form_has_the_output_bias_in_the_last_column(tiny):
    model = tiny("bert")
    value, (w_out, b_out) = PROJECTIONS["bert"](model, 0)
    second = homogeneous(w_out, 0 * b_out)
    second[:-1, -1] = b_out
    product = homogeneous(*value) @ second
    rate = np.linalg.norm(product) / np.sqrt(len(product))
    lens = Lens(model)
    assert expansion_rates(lens, published=True)[0] == pytest.approx(rate, rel=1e-12)
    assert abs(expansion_rates(lens)[0] - rate) > 1e-3


def test_published_form_needs_values_of_the_models_width(tiny):
    lens = Lens(tiny("gemma", head_dim=8))
    assert np.isnan(expansion_rates(lens, published=True)).all()
    assert np.isfinite(expansion_rates(lens)).all()


@pytest.mark.parametrize("family", tiny_families())
def test_every_family_has_a_rate_per_layer(family, tiny):
    lens = Lens(tiny(family, torch.float32))
    if any(layer.attention.latent is not None for layer in lens.layers):
        with pytest.raises(InputError):
            expansion_rates(lens)
        return
    rates = expansion_rates(lens)
    assert len(rates) == lens.n_layers
    assert (np.array(rates) > 0).all()


def test_experiment_shows_what_was_written(tmp_path, tiny, monkeypatch):
    lens = Lens(tiny("bert"))
    monkeypatch.setattr(mixing, "write_sentence", lambda *_: None)
    for _ in range(2):  # a second time replaces it
        write_from_model(lens, evidence_of(FrameRun({}, []), "", tmp_path).settings, None, tmp_path)
    result = expansion_rate(evidence_of(FrameRun({}, []), "", tmp_path))
    assert result is not None
    table = result.tables["expansion"].frame
    rates = expansion_rates(lens)
    assert table["layer"].tolist() == ["1", "2", "mean"]
    assert table["rate"].tolist() == pytest.approx([*rates, np.mean(rates)])
    assert "as published" in table
    assert result.summary["Expansion rate, mean over layers"] == pytest.approx(np.mean(rates))
