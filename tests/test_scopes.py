"""Names of scopes, long and short."""

from __future__ import annotations

import pytest
from one_case import in_one_case

from normlens.errors import NormLensError, UnknownScopeError
from normlens.scopes import (
    aliases,
    chains,
    components_of,
    consecutive,
    feed_forward_pairs,
    resolve,
    resolve_all,
    shortest,
)

BERT = [
    "ATTN-W",
    "ATTNRES-W",
    "ATTN-N",
    "ATTNRES-N",
    "ATTNRESLN-N",
    "ATTNRESLNFF-N",
    "ATTNRESLNFFRES-N",
    "ATTNRESLNFFRESLN-N",
]
GPT2 = BERT[:-1]
NEOX = ["ATTN-W", "ATTNRES-W", "ATTN-N", "ATTNFF-N", "ATTNFFRES-N"]


@in_one_case(
    ("scope", "components"),
    [
        ("ATTN-W", ["ATTN"]),
        ("ATTNRESLN-N", ["ATTN", "RES", "LN"]),
        ("ATTNLNRESLNFFLNRES-N", ["ATTN", "LN", "RES", "LN", "FF", "LN", "RES"]),
    ],
)
def test_components(scope, components):
    assert components_of(scope) == components


@in_one_case(
    ("short", "scope"),
    [
        ("ATTN", "ATTN-N"),
        ("RES1", "ATTNRES-N"),
        ("LN1", "ATTNRESLN-N"),
        ("FF", "ATTNRESLNFF-N"),
        ("ff", "ATTNRESLNFF-N"),
        (" attnresln-n ", "ATTNRESLN-N"),
        ("attn-w", "ATTN-W"),
    ],
)
def test_short_names_of_bert(short, scope):
    assert resolve(short, BERT) == scope


def test_a_component_that_comes_once_needs_no_number():
    assert resolve("LN", GPT2) == "ATTNRESLN-N"
    assert resolve("RES2", GPT2) == "ATTNRESLNFFRES-N"
    assert resolve("RES", NEOX) == "ATTNFFRES-N"
    assert resolve("LN1", GPT2) == "ATTNRESLN-N"


@in_one_case("scopes", [BERT, GPT2, NEOX], ids=["bert", "gpt2", "neox"])
def test_every_scope_but_the_weights_has_a_short_name(scopes):
    assert set(aliases(scopes).values()) == {scope for scope in scopes if scope.endswith("-N")}


@in_one_case("name", ["FFN", "LN3", "", "ATTN-X", "LN", "ATTNLN-N"])
def test_an_unknown_scope_is_answered_with_the_known_ones(name):
    with pytest.raises(UnknownScopeError) as raised:
        resolve(name, BERT)
    message = str(raised.value)
    assert repr(name) in message
    assert all(scope in message for scope in BERT)
    assert all(short in message for short in ("RES1", "LN1", "FF", "RES2", "LN2"))
    assert isinstance(raised.value, NormLensError)


def test_several_come_in_the_order_of_the_layer():
    assert resolve_all(["LN2", "FF", "ATTN-W", "ff"], BERT) == [
        "ATTN-W",
        "ATTNRESLNFF-N",
        "ATTNRESLNFFRESLN-N",
    ]
    assert resolve_all("FF", BERT) == ["ATTNRESLNFF-N"]


def test_consecutive_scopes_are_the_steps_of_the_layer():
    assert consecutive(BERT) == [
        ("ATTN", "ATTN-W", "ATTN-N"),
        ("RES1", "ATTN-N", "ATTNRES-N"),
        ("LN1", "ATTNRES-N", "ATTNRESLN-N"),
        ("FF", "ATTNRESLN-N", "ATTNRESLNFF-N"),
        ("RES2", "ATTNRESLNFF-N", "ATTNRESLNFFRES-N"),
        ("LN2", "ATTNRESLNFFRES-N", "ATTNRESLNFFRESLN-N"),
    ]
    assert consecutive(["ATTN-W", "ATTNRES-W"]) == []
    assert consecutive(["FF", "ATTN-N"]) == []


UNLIKE = [*BERT[:5], *NEOX[3:], *BERT[5:]]


def test_each_kind_of_layer_has_a_chain_of_scopes():
    assert chains(BERT) == [BERT[2:]]
    assert chains(UNLIKE) == [[BERT[2], *NEOX[3:]], BERT[2:]]


def test_names_of_layers_that_differ_mean_one_scope_or_none():
    short = aliases(UNLIKE)
    assert short["LN1"] == "ATTNRESLN-N"
    assert short["RES2"] == "ATTNRESLNFFRES-N"
    assert not {"FF", "RES", "RES1"} & set(short)
    for name in ("FF", "res1"):
        with pytest.raises(UnknownScopeError, match=f"'{name}' could be ATTN.* or ATTN"):
            resolve(name, UNLIKE)
    assert resolve("ATTNFF", UNLIKE) == "ATTNFF-N"
    assert set(shortest(UNLIKE)) == set(UNLIKE[2:])


def test_steps_of_layers_that_differ_follow_each_kind():
    assert [(step.before, step.after) for step in consecutive(UNLIKE)] == [
        ("ATTN-W", "ATTN-N"),
        ("ATTN-N", "ATTNRES-N"),
        ("ATTNRES-N", "ATTNRESLN-N"),
        ("ATTN-N", "ATTNFF-N"),
        ("ATTNFF-N", "ATTNFFRES-N"),
        ("ATTNRESLN-N", "ATTNRESLNFF-N"),
        ("ATTNRESLNFF-N", "ATTNRESLNFFRES-N"),
        ("ATTNRESLNFFRES-N", "ATTNRESLNFFRESLN-N"),
    ]
    assert feed_forward_pairs(UNLIKE) == [("ATTN-N", "ATTNFF-N"), (BERT[4], BERT[5])]
