"""Maps, explanations and cosines for tests of the viewer."""

from __future__ import annotations

from typing import Any

import numpy as np

from normlens.results.axes import TokenAxis
from normlens.results.explanation import Cosine, Explanation
from normlens.results.maps import Maps


def hostile_maps(n: int = 4, layers: int = 2, causal: bool = False) -> Maps:
    """Maps of tokens that would do harm if they were read as markup."""
    rng = np.random.default_rng(1)
    tokens = ["<script>alert(1)</script>", "</script><img src=x onerror=alert(1)>", "&lt;b&gt;"]
    tokens += [f'"{k}' for k in range(n - 3)]
    allowed = np.ones((layers, n, n), dtype=bool)
    if causal:
        allowed &= np.tril(allowed[0])
    scopes = ["ATTN-W", "ATTN-N", "ATTNRES-N", "ATTNRESLN-N", "ATTNRESLNFF-N"]
    return Maps(
        arrays={
            scope: (rng.lognormal(0, 1, allowed.shape) * allowed).astype(np.float32)
            for scope in scopes
        },
        raw_tokens=tokens,
        layers=list(range(layers)),
        allowed=allowed,
        completeness=2e-6,
        provenance={"model": "<i>model</i>", "components": "ATTN RES LN FF", "dtype": "float32"},
        mixing={scope: rng.random((layers, n)).astype(np.float32) for scope in scopes},
        special=[False] * n,
        text="<script>alert(1)</script> </title><script>alert(2)</script>",
    )


def hostile_explanation(layers: int = 3, causal: bool = True, **more: Any) -> Explanation:
    """An explanation of tokens that would do harm as markup; its numbers add up."""
    rng = np.random.default_rng(2)
    tokens = [*hostile_maps(6).raw_tokens[:3], "soap", "##y", "is"]
    n = len(tokens)
    flow = rng.normal(size=(layers, n, n)).astype(np.float32)
    if causal:
        flow *= np.tril(np.ones((n, n), dtype=np.float32))
    biases: list[tuple[int | str, str, float]] = [
        (layer, name, float(rng.normal())) for layer in range(layers) for name in ("ATTN", "FF")
    ]
    # What enters a layer leaves it, but for its biases.
    for layer in range(1, layers):
        flow[layer] *= flow[layer - 1].sum(1) / flow[layer].sum(0)
    biases.append(("head", "OUT", 0.25))
    nodes = flow.sum(1)
    remainder = sum(value for *_, value in biases)
    heads = rng.normal(size=(layers, 2, n)).astype(np.float32)
    fields: dict[str, Any] = {
        "task": "causal language model",
        "value": float(nodes[0].sum() + remainder),
        "nodes": nodes,
        "components": np.stack([heads.sum(1), *rng.normal(size=(2, layers, n))], axis=1),
        "component_names": ["ATTN", "FF", "RES"],
        "heads": heads,
        "biases": biases,
        "flows": {"": flow},
        "raw_tokens": tokens,
        "completeness": 3e-7,
        "provenance": {"model": "<i>model</i>", "model_type": "llama", "tolerance": 1e-5},
        "position": n - 1,
        "target": "<b>are</b>",
        "target_id": 7,
        "target_value": 4.5,
        "probability": 0.25,
        "contrast": "␣is",
        "contrast_id": 8,
        "contrast_value": 1.5,
        "contrast_probability": 0.0001,
        "special": [True, *[False] * (n - 1)],
        "token_words": [None, 0, 1, 2, 2, 3],
        "word_labels": [*tokens[1:3], "soapy", "is"],
        "text": "<script>alert(1)</script> soapy is",
    }
    return Explanation(**fields | more)


def hostile_cosine() -> Cosine:
    """A cosine of tokens that would do harm as markup."""
    rng = np.random.default_rng(3)
    a = TokenAxis(
        ["[CLS]", "<script>alert(1)</script>", "soap", "##y", "[SEP]"],
        special=[True, False, False, False, True],
        token_words=[None, 0, 1, 1, None],
        word_labels=["<script>alert(1)</script>", "soapy"],
    )
    b = TokenAxis(
        ["[CLS]", "drama", "<b>", "[SEP]"],
        special=[True, False, False, True],
        token_words=[None, 0, 1, None],
        word_labels=["drama", "<b>"],
    )
    matrix, with_a, with_b = (rng.normal(0, 0.1, shape) for shape in ((5, 4), 5, 4))
    return Cosine(
        value=float(matrix.sum() + with_a.sum() + with_b.sum() - 0.125),
        matrix=matrix,
        a_with_bias=with_a,
        b_with_bias=with_b,
        bias=-0.125,
        a=a,
        b=b,
        completeness=2e-8,
        provenance={"model": "<i>model</i>"},
        text_a="<script>alert(1)</script> soapy",
        text_b="drama <b>",
    )
