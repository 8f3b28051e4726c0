"""Writes fixture.json: small payloads, and what NormLens itself computes from what they hold.

Run it when the payload's format changes: ``python viewer/tests/make_fixture.py``.
"""

from __future__ import annotations

import base64
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from normlens.figures.colours import clipped_end, scale_end
from normlens.results.axes import PatchGrid, Routing, TokenAxis, plain
from normlens.results.explanation import Cosine, Explanation
from normlens.results.maps import Maps
from normlens.viewer.payload import encode, encode_cosines, encode_explanations

SCOPES = ["ATTN-W", "ATTNRES-W", "ATTN-N", "ATTNRES-N", "ATTNRESLN-N", "ATTNRESLNFF-N"]


def example(causal: bool) -> Maps:
    rng = np.random.default_rng(7)
    n, layers = 7, 2
    allowed = np.ones((layers, n, n), dtype=bool)
    if causal:
        allowed &= np.tril(np.ones((n, n), dtype=bool))
        allowed[1] &= ~np.tril(np.ones((n, n), dtype=bool), -4)  # a layer that sees a window
    arrays = {
        scope: (rng.lognormal(0, 2, (layers, n, n)) * allowed).astype(np.float32)
        for scope in SCOPES
    }
    arrays["ATTN-N"][:, 2, 1] = arrays["ATTN-N"][:, 2, 2]  # a tie
    arrays["ATTNRES-W"] = 0.5 * arrays["ATTN-W"] + 0.5 * np.eye(n, dtype=np.float32)
    return Maps(
        arrays=arrays,
        raw_tokens=["[CLS]", "soap", "##y", "</script>", "<b>", "日本", "[SEP]"],
        layers=[0, 5],
        allowed=allowed,
        completeness=1.5e-6,
        provenance={"model": "example", "components": "ATTN RES LN FF"},
        mixing={scope: rng.random((layers, n)).astype(np.float32) for scope in SCOPES},
        special=[True, False, False, False, False, False, True],
        token_words=[None, 0, 0, 1, 2, 3, None],
        word_labels=["soapy", "</script>", "<b>", "日本"],
        text="soapy </script> <b> 日本",
    )


def with_heads(maps: Maps) -> Maps:
    """The same maps with three heads, of which the second layer has none for the weights."""
    rng = np.random.default_rng(13)
    layers, n, m = maps.allowed.shape
    heads = {
        scope: (rng.lognormal(0, 2, (layers, 3, n, m)) * maps.allowed[:, None]).astype(np.float32)
        for scope in ("ATTN-N", "ATTN-W")
    }
    heads["ATTN-W"] = heads["ATTN-W"][:1]
    return replace(maps, heads=heads, coverage={"heads/ATTN-W": maps.layers[:1]})


def scales() -> dict[str, Any]:
    """Lists of many shapes with the ends of their clipped scales, and ends of maps' scales."""
    rng = np.random.default_rng(14)
    lists = [
        rng.lognormal(0, spread, size)
        for size in (1, 2, 9, 15, 56, 200, 1500)
        for spread in (0.5, 3)
    ]
    lists += [np.r_[np.ones(19), 100], np.r_[np.zeros(99), 5], np.zeros(4), np.round(lists[-1])]
    values = [each.astype(np.float32) for each in lists]
    ends = []
    for causal in (False, True):
        maps = example(causal)
        name = "causal" if causal else "whole"
        for scope in maps.scopes:
            for layer, array in enumerate(maps[scope]):
                shown = np.ma.masked_where(~maps.allowed[layer], array)
                bare = np.ma.masked_where(maps.is_same_token, shown)
                ends += [
                    {"maps": name, "scope": scope, "layer": layer, "colour": colour,
                     "diagonal": each is shown, "end": scale_end(each, maps.is_same_token, colour)}
                    for colour in ("clipped", "sqrt", "linear")
                    for each in (shown, bare)
                ]  # fmt: skip
    return {"lists": [[plain(each), clipped_end(each)] for each in values], "ends": ends}


def pair() -> Maps:
    """An encoder–decoder's maps: a target of four tokens, a source of five, two layers each."""
    rng = np.random.default_rng(11)
    sources = example(causal=False).targets.take(range(5))
    targets = TokenAxis(
        ["<s>", "savon", "neux", "</s>"],
        special=[True, False, False, True],
        token_words=[None, 0, 0, None],
        word_labels=["savonneux"],
    )
    n, m, layers = len(targets), len(sources), 2
    own = np.tile(np.hstack([np.zeros((n, m), dtype=bool), np.tri(n, dtype=bool)]), (layers, 1, 1))
    other = np.tile(
        np.hstack([np.ones((n, m), dtype=bool), np.zeros((n, n), bool)]), (layers, 1, 1)
    )
    held = {
        "ATTN-W": own, "CROSS-W": other, "ATTN-N": own, "ATTNRESCROSS-N": other,
        "ATTNRESCROSSRES-N": own | other, "ATTNRESCROSSRESFF-N": own | other,
    }  # fmt: skip
    arrays = {
        scope: (rng.lognormal(0, 2, pairs.shape) * pairs).astype(np.float32)
        for scope, pairs in held.items()
    }
    same = np.hstack([np.zeros((n, m), dtype=bool), np.eye(n, dtype=bool)])
    arrays["ATTNRES-W"] = (0.5 * arrays["ATTN-W"] + 0.5 * same).astype(np.float32)
    encoder = example(causal=False)._part(targets=list(range(5)), sources=list(range(5)))
    return Maps(
        arrays=arrays,
        raw_tokens=targets.raw_tokens,
        layers=list(range(layers)),
        allowed=own | other,
        completeness=2e-6,
        provenance={"model": "example", "components": "ATTN RES CROSS RES FF", "stack": "decoder"},
        mixing={"ATTN-N": rng.random((layers, n)).astype(np.float32)},
        special=targets.special,
        token_words=targets.token_words,
        word_labels=targets.word_labels,
        text=("soapy </script> <b>", "savonneux"),
        source_axis=sources.followed_by(targets),
        same_token=same,
        encoder=replace(encoder, provenance={"model": "example", "stack": "encoder"}),
    )


def extras() -> Maps:
    """Maps of a picture of 2 by 2 patches, whose second layer has experts and a shared one."""
    rng = np.random.default_rng(12)
    maps = example(causal=False)
    picture = rng.integers(0, 256, (3, 4, 3), dtype=np.uint8)
    n = len(maps.tokens)
    routing = Routing(
        layers=[5],
        experts=rng.integers(0, 300, (1, n, 2)),
        weights=rng.random((1, n, 2)).astype(np.float32),
        count=300,
        tokens=maps.tokens,
        shared=rng.random((1, n)).astype(np.float32),
    )
    return replace(maps, grid=PatchGrid(2, 2, 1, picture), routing=routing, token_words=None)


def pair_values(maps: Maps) -> dict:
    return {
        "tokens": maps.tokens,
        "source_tokens": maps.source_tokens,
        "sequences": maps.source_sequences,
        "same": maps.is_same_token.astype(int).tolist(),
        "maps": {scope: maps[scope].tolist() for scope in maps.scopes},
        "allowed": maps.allowed.tolist(),
        "similarity": {
            f"{a}|{b}": plain(maps.similarity(a, b)) for a in maps.scopes for b in maps.scopes
        },
    }


def values(maps: Maps) -> dict:
    before, after = "ATTNRESLN-N", "ATTNRESLNFF-N"
    return {
        "tokens": maps.tokens,
        "maps": {scope: maps[scope].tolist() for scope in maps.scopes},
        "allowed": maps.allowed.tolist(),
        "similarity": {
            f"{a}|{b}": maps.similarity(a, b).tolist() for a in maps.scopes for b in maps.scopes
        },
        "amplification": {
            axis: maps.amplification(before, after, axis).tolist()
            for axis in ("source", "target", "none")
        },
        "mixing": {scope: ratio.tolist() for scope, ratio in maps.mixing.items()},
    }


def brief(value: Any) -> Any:
    """Numbers with nine digits, which is what float32 holds."""
    if isinstance(value, dict):
        return {key: brief(item) for key, item in value.items()}
    if isinstance(value, list):
        return [brief(item) for item in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def explanation() -> Explanation:
    rng = np.random.default_rng(8)
    n, layers = 7, 3
    flow = rng.normal(size=(layers, n, n)).astype(np.float32)
    flow *= np.tril(np.ones((n, n), dtype=np.float32))
    labels = example(causal=True)
    return Explanation(
        task="causal language model",
        value=1.25,
        nodes=flow.sum(1),
        components=rng.normal(size=(layers, 2, n)).astype(np.float32),
        component_names=["ATTN", "FF"],
        heads=rng.normal(size=(layers, 4, n)).astype(np.float32),
        biases=[(0, "ATTN", 0.5), (0, "FF", -0.25), (2, "FF", 0.125), ("head", "OUT", 1.0)],
        flows={"": flow},
        raw_tokens=labels.raw_tokens,
        completeness=1e-7,
        provenance={"model": "example"},
        position=2,
        target="soap",
        target_value=3.0,
        probability=0.5,
        contrast="opera",
        contrast_value=1.75,
        contrast_probability=0.1,
        special=labels.special,
        token_words=labels.token_words,
        word_labels=labels.word_labels,
        text=labels.text,
    )


def translation() -> list[Explanation]:
    """Two tokens of a target of four, from a source of three tokens."""
    rng = np.random.default_rng(10)
    why = explanation()
    cross = rng.normal(size=(3, 2, 7)).astype(np.float32)
    cross[0] = np.nan  # the encoder's layer
    heads = why.heads.copy()
    heads[1:, 2:] = np.nan  # the decoder's have fewer heads
    two = replace(
        why,
        task="generating encoder–decoder",
        encoder_tokens=3,
        encoder_layers=1,
        cross_heads=cross,
        heads=heads,
        position=1,
    )
    later = two.nodes.copy()
    later[:, 5:] = 0
    return [replace(two, nodes=later, contrast=None), replace(two, position=3)]


def explained(why: Explanation) -> dict:
    arrays = {name: getattr(why, name) for name in ("nodes", "components", "heads", "flow")}
    return {
        "tokens": why.tokens,
        "position": why.position,
        **{name: np.asarray(array, dtype=float).tolist() for name, array in arrays.items()},
    }


def cosine() -> Cosine:
    rng = np.random.default_rng(9)
    a = example(causal=False).targets
    b = a.take(range(4))
    matrix, with_a, with_b = (rng.normal(size=size) for size in ((len(a), len(b)), len(a), len(b)))
    return Cosine(
        value=float(matrix.sum() + with_a.sum() + with_b.sum() + 0.5),
        matrix=matrix,
        a_with_bias=with_a,
        b_with_bias=with_b,
        bias=0.5,
        a=a,
        b=b,
        completeness=1e-8,
        provenance={"model": "example"},
        text_a="soapy </script> <b> 日本",
        text_b="soapy </script>",
    )


def compared(pair: Cosine) -> dict:
    return {
        "tokens": [pair.tokens_a, pair.tokens_b],
        "matrix": pair.matrix.tolist(),
        "margins": [pair.margins.a.tolist(), pair.margins.b.tolist()],
    }


def text_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def main() -> None:
    found: dict[str, Any] = {}
    for name, causal in (("whole", False), ("causal", True)):
        maps = example(causal)
        found[name] = {
            "payloads": {str(bits): text_of(encode(maps, precision=bits)) for bits in (32, 16, 8)},
            "expected": {
                "subwords": values(maps),
                "words": values(maps.words()),
                "without_special": values(maps.without_special_tokens()),
                "words_without_special": values(maps.words().without_special_tokens()),
            },
        }
    two = pair()
    asked = [("CROSS-W",), ("ATTN-N",), ("ATTNRESCROSS-N", "ATTN-N"), ("ATTNRESCROSSRES-N",)]
    assert two.encoder is not None
    found["pair"] = {
        "payload": text_of(encode(two, precision=32)),
        "expected": {
            "subwords": pair_values(two),
            "words": pair_values(two.words()),
            "words_without_special": pair_values(two.words().without_special_tokens()),
            "encoder_columns": pair_values(two.sources_of("encoder")),
            "decoder_columns": pair_values(
                two.words().without_special_tokens().sources_of("decoder")
            ),
        },
        "pairs": {"|".join(scopes): two.pairs_of(*scopes).tolist() for scopes in asked},
        "encoder": two.encoder["ATTN-N"].tolist(),
    }
    more = extras()
    assert more.grid is not None
    assert more.grid.picture is not None
    assert more.routing is not None
    assert more.routing.shared is not None
    found["extras"] = {
        "payload": text_of(encode(more, precision=32)),
        "pixels": more.grid.picture.ravel().tolist(),
        "experts": more.routing.experts.ravel().tolist(),
        "weights": more.routing.weights.ravel().tolist(),
        "shared": more.routing.shared.ravel().tolist(),
        "row": more["ATTN-N"][1, 0, 1:5].tolist(),
        "column": more["ATTN-N"][1, 1:5, 3].tolist(),
    }
    heads = with_heads(example(causal=True))
    found["heads"] = {
        "payloads": {
            str(bits): text_of(encode(heads, precision=32, head_precision=bits)) for bits in (32, 8)
        },
        "maps": plain(heads.heads),
        "words": plain(heads.words().heads),
    }
    found["scales"] = scales()
    why, alike = explanation(), cosine()
    found["explanation"] = {
        "payloads": {
            str(bits): text_of(encode_explanations(why, precision=bits)) for bits in (32, 16)
        },
        "expected": {"subwords": explained(why), "words": explained(why.words())},
    }
    both = translation()
    found["translation"] = {
        "payload": text_of(encode_explanations(both, precision=32)),
        "shares": [plain(asdict(each.shares)) for each in both],
        "source_words": both[0].words().encoder_tokens,
        "cross_heads": plain(both[1].cross_heads),
    }
    found["cosine"] = {
        "payload": text_of(encode_cosines(alike)),
        "expected": {"subwords": compared(alike), "words": compared(alike.words())},
    }
    path = Path(__file__).with_name("fixture.json")
    path.write_text(json.dumps(brief(found), separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
