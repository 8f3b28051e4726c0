"""Writes fixture.json: payloads of small maps, and what NormLens itself computes from them.

Run it when the payload's format changes: ``python viewer/tests/make_fixture.py``.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np

from normlens.maps import Maps
from normlens.viewer.payload import encode

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
        tokens=["[CLS]", "soap", "##y", "</script>", "<b>", "日本", "[SEP]"],
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


def main() -> None:
    found = {}
    for name, causal in (("whole", False), ("causal", True)):
        maps = example(causal)
        found[name] = {
            "payloads": {
                str(bits): base64.b64encode(encode(maps, precision=bits)).decode()
                for bits in (32, 16, 8)
            },
            "expected": {
                "subwords": values(maps),
                "words": values(maps.words()),
                "without_special": values(maps.without_special_tokens()),
                "words_without_special": values(maps.words().without_special_tokens()),
            },
        }
    path = Path(__file__).with_name("fixture.json")
    path.write_text(json.dumps(brief(found), separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
