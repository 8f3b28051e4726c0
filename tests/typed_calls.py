"""Calls as users write them, for mypy alone: options are completed, and wrong ones are errors.

mypy is strict here, so that a comment ``type: ignore`` that ignores no error is an error itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import normlens
from normlens import Explanation, Explanations, Maps
from normlens.studies.papers.reproduce import reproduce

if TYPE_CHECKING:
    from typing_extensions import assert_type


def right(lens: normlens.Lens) -> None:
    assert_type(lens.maps("text", scopes=["FF"], layers=0, truncate=True), Maps)
    assert_type(lens.maps(["text"], heads=True, progress=False), list[Maps])
    assert_type(lens.maps("source", "target", memory_limit="1GB"), Maps)
    assert_type(lens.maps(input_ids=[5, 6], target="text", attention_mask=[1, 1]), Maps)
    assert_type(lens.maps(input_features=[[0.5]]), Maps | list[Maps])
    assert_type(lens.explain("text", target="word", flow=False, layer=1), Explanation)
    assert_type(lens.explain("text", position="all", truncate=True), Explanations)
    lens.cosine("a", "b", batch_size=1)
    run = normlens.run("minilm", "sample", "out", measures="mixing", workers=2)
    assert_type(run.resume(workers="auto"), normlens.Run)
    normlens.ablate("minilm", "sample", "out", kinds=["zero"], execution={"workers": 2})


def misspelt(lens: normlens.Lens) -> None:
    lens.maps("text", scope="FF")  # type: ignore[call-overload]
    lens.maps(input_ids=[5], layer=0)  # type: ignore[call-overload]
    lens.explain("text", flows=True)  # type: ignore[call-overload]
    lens.cosine("a", "b", rule="ig")  # type: ignore[call-overload]
    run = normlens.run("minilm", "sample", "out", measure="mixing")  # type: ignore[call-arg]
    run.resume(worker=2)  # type: ignore[call-arg]
    normlens.evaluate("minilm", "sample", "out", method="alti")  # type: ignore[call-arg]
    normlens.align("marian", "pairs", "out", scope="CROSS")  # type: ignore[call-arg]
    normlens.ablate("minilm", "sample", "out", kind="zero")  # type: ignore[call-arg]
    normlens.ablate("minilm", "sample", "out", execution={"worker": 2})  # type: ignore[arg-type]
    reproduce("ff", "minilm", "sample", "out", seeds=1)  # type: ignore[call-arg]


def of_another_type(lens: normlens.Lens) -> None:
    lens.maps("text", layers="all of them")  # type: ignore[arg-type]
    lens.maps("text", attention_mask=[1])  # type: ignore[call-overload]
    lens.explain("text", flow="yes")  # type: ignore[call-overload]
    normlens.run("minilm", "sample", "out", limit="many")  # type: ignore[arg-type]
