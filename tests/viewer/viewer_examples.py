"""Maps for tests of the viewer."""

from __future__ import annotations

import numpy as np

from normlens.maps import Maps


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
