"""Rules for activations that users register: slopes of their own, complete like the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from one_case import in_one_case
from search_models import tiny_of

import normlens
from normlens.errors import InputError
from normlens.options import OWN_RULES

TEXT = [2, 5, 6, 8, 3]


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(OWN_RULES):
        monkeypatch.delitem(OWN_RULES, name)
    monkeypatch.setattr("normlens.options.OWN_RULES", OWN_RULES)


def gradient(value: Any, *z: Any) -> Any:
    """The rule "gradient", by autograd."""
    with torch.enable_grad():
        leaves = [each.detach().requires_grad_() for each in z]
        return torch.autograd.grad(value(*leaves).sum(), leaves)


@in_one_case("family", ["bert", "llama", "mixtral"])
def test_a_rule_of_ones_own_is_followed_everywhere(family, tiny):
    normlens.register_rule("again", gradient)
    lens = normlens.load(tiny(family))
    own, known = (lens.maps(input_ids=TEXT, nonlinearity=rule) for rule in ("again", "gradient"))
    for scope in known.scopes:
        np.testing.assert_allclose(own[scope], known[scope], rtol=1e-9, atol=1e-12)
    assert own.provenance["nonlinearity"] == "again"


@in_one_case("of, kind", [("bert", "BertForMaskedLM"), ("llama", "LlamaForCausalLM")])
def test_slopes_of_any_size_are_complete(of, kind):
    normlens.register_rule("half", lambda value, *z: tuple(0.5 * torch.ones_like(one) for one in z))
    lens = normlens.load(tiny_of(kind, of=of))
    maps = lens.maps(input_ids=TEXT, nonlinearity="half")
    assert maps.completeness < 1e-6  # RMSNorm computes in float32
    assert not np.allclose(maps[maps.scopes[-1]], lens.maps(input_ids=TEXT)[maps.scopes[-1]])
    asked = {"position": 3, "target": 5, "nonlinearity": "half"}
    why = lens.explain(input_ids=TEXT, **asked)
    total = why.contributions.sum() + why.remainder
    assert total == pytest.approx(why.value, rel=1e-6)
    # The same frozen network, token by token: what each token gives is linear in it.
    (half, ig) = (
        w.contributions for w in (why, lens.explain(input_ids=TEXT, position=3, target=5))
    )
    assert not np.allclose(half, ig)


@in_one_case(
    "name, slopes, said",
    [
        ("ig", gradient, "new name"),
        ("", gradient, "new name"),
        ("mine", 1.0, "a function"),
    ],
)
def test_what_is_no_rule_is_refused(name, slopes, said):
    with pytest.raises(InputError, match=said):
        normlens.register_rule(name, slopes)


@in_one_case(
    "slopes, said",
    [
        (lambda value, z: z[..., :1], "slopes of shapes"),
        (lambda value, z: (z, z), "slopes of shapes"),
        (lambda value, z: value(z) / (z * 0), "not finite"),
    ],
)
def test_what_are_no_slopes_is_refused(slopes, said, tiny):
    normlens.register_rule("wrong", slopes)
    with pytest.raises(InputError, match=said):
        normlens.load(tiny("bert")).maps(input_ids=TEXT, nonlinearity="wrong")
    with pytest.raises(InputError, match="wrong"):
        normlens.load(tiny("bert")).maps(input_ids=TEXT, nonlinearity="wrongly")
