"""Explanations with any tokens and any number of layers, whose numbers add up."""

from __future__ import annotations

from typing import Any

import numpy as np

from normlens import Explanation, Explanations


def explanation(
    tokens: list[str], layers: int = 3, seed: int = 0, biases: bool = True, **fields: Any
) -> Explanation:
    """A score whose flow, nodes and biases meet their neighbours, as a lens gives them."""
    random = np.random.default_rng(seed)
    n, heads = len(tokens), 4
    shares = [(layer, "FF", float(random.normal())) for layer in range(layers) if biases]
    shares += [("head", "OUT", float(random.normal()))] if biases else []
    nodes = np.zeros((layers, n))
    flow = np.zeros((layers, n, n))
    nodes[0] = random.normal(size=n)
    for layer in range(layers):
        ways = np.tril(random.random((n, n)) + 0.01)
        ways[np.diag_indices(n)] += n / 4
        flow[layer] = ways / ways.sum(0) * nodes[layer]
        if layer + 1 < layers:
            nodes[layer + 1] = flow[layer].sum(1)
    made = {
        "task": "causal language model",
        "value": float(nodes[0].sum() + sum(share for *_, share in shares)),
        "nodes": nodes,
        "components": random.normal(size=(layers, 3, n)),
        "component_names": ["ATTN", "FF", "RES"],
        "heads": random.normal(size=(layers, heads, n)),
        "biases": shares,
        "flows": {"": flow},
        "raw_tokens": tokens,
        "completeness": 3e-7,
        "provenance": {
            "model": "tiny",
            "dtype": "float32",
            "compute_dtype": "float32",
            "nonlinearity": "ig",
            "versions": {"normlens": "0.1.0"},
        },
        "position": n - 1,
        "target": "␣are",
        "target_id": 3,
        "target_value": 30.2,
        "probability": 0.16,
        "contrast": "␣is",
        "contrast_id": 4,
        "contrast_value": 26.8,
        "contrast_probability": 0.0053,
        "text": "".join(tokens).replace("␣", " "),
    }
    return Explanation(**{**made, **fields})


def explanations(tokens: list[str]) -> Explanations:
    """One explanation for each next token."""
    each = []
    for position in range(len(tokens) - 1):
        why = explanation(tokens, seed=position, position=position, target=tokens[position + 1])
        why.nodes[:, position + 1 :] = 0
        each.append(why)
    return Explanations(each)


SHORT = ["The", "␣keys", "␣to", "␣the", "␣cabinet"]
LONG = [f"␣word{place}" for place in range(75)]
SCRIPTS = ["[CLS]", "他", "说", "␣$x_1$", "мир", "مرحبا", "café", "🌍", "\\xe4", "[SEP]"]
