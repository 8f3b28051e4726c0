"""What every result promises, tried with one of each kind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from heads import headed
from pair_examples import fast_tokenizer, with_head

import normlens
from normlens.errors import InputError, MapsFileError, OutputError
from normlens.models.tiny import tiny_model
from normlens.results import exports, store
from normlens.results.store import Result, TokenResult

IDS = [3, 9, 27, 14]
A, B = "A man plays a flute.", "Someone plays."


def explained(**options: Any) -> Any:
    lens = normlens.load(headed("gpt2", "CausalLM"), tokenizer=False)
    return lens.explain(input_ids=IDS, heads=True, **options)


def cited(minilm: Any, smollm2: Any) -> Any:
    return smollm2.cite("What does she play?", ["She plays the flute.", "Rain."], "The flute.")


#: A result of every kind that can be made without a model of its own, by its class.
MADE: dict[str, Callable[[Any, Any], Any]] = {
    "Maps": lambda minilm, _: normlens.load(tiny_model("bert")).maps(input_ids=IDS, heads=True),
    "Maps of two stacks": lambda *_: normlens.load(with_head("bart"), fast_tokenizer()).maps(
        "the small house", "la maison"
    ),
    "Maps of experts": lambda *_: normlens.load(tiny_model("mixtral")).maps(input_ids=IDS),
    "Explanation": lambda *_: explained(position=-1),
    "Explanations": lambda *_: explained(position="all"),
    "Cosine": lambda minilm, _: minilm.cosine(A, B),
    "Citation": cited,
    "Ranking": lambda minilm, _: minilm.rank(A, [B, "Rain."]),
}
#: Results that others are made of or stand on.
PARTS = {Result, TokenResult}


def kinds() -> set[type]:
    """Every class of results that the package has."""
    found, left = set(), [Result]
    while left:
        kind = left.pop()
        found.add(kind)
        left += [each for each in kind.__subclasses__() if each.__module__.startswith("normlens.")]
    return found - PARTS


def test_every_kind_of_result_is_tried() -> None:
    names = {kind.__name__ for kind in kinds()}
    assert {name.split()[0] for name in MADE} | {"Score", "Explained", "Results"} >= names


@pytest.mark.parametrize("kind", MADE)
def test_every_result(kind: str, minilm: Any, smollm2: Any, tmp_path: Path) -> None:
    """It is saved and opened as it was, exported in every format, and never over a user's file."""
    result = MADE[kind](minilm, smollm2)
    assert isinstance(result, Result)
    assert type(result).__name__ == kind.split()[0]
    assert repr(result)
    assert result == MADE[kind](minilm, smollm2) or kind == "Citation"

    path = result.save(tmp_path / "it.safetensors")
    for mapped in (False, True):
        again = normlens.open(path, mapped=mapped)
        assert type(again) is type(result)
        assert again == result
        assert type(result).load(path, mapped=mapped) == result
    other = normlens.Cosine if kind.startswith("Maps") else normlens.Maps
    with pytest.raises(MapsFileError):
        other.load(path)
    assert store.open(result.save(path)) == result  # its own file is replaced
    with pytest.raises(InputError):
        result.save(tmp_path / "it.npz")

    few = {"layers": 0} if kind.startswith("Maps") else {}  # pictures take most of the time
    for ending in exports.FORMATS:
        name = tmp_path / f"exported{ending}"
        if ending in exports.PICTURES and kind == "Ranking":
            with pytest.raises(InputError):
                exports.write(result, name)
            continue
        written = exports.write(result, name, **(few if ending in exports.PICTURES else {}))
        assert written.stat().st_size > 100, ending
        with pytest.raises(OutputError):
            exports.write(result, written)
    assert json.loads((tmp_path / "exported.json").read_text("utf-8"))
    assert len(pd.read_csv(tmp_path / "exported.csv"))
    assert normlens.open(tmp_path / "exported.safetensors") == result
    with pytest.raises(InputError):
        exports.write(result, tmp_path / "exported.xlsx")
    left = {each.stem for each in tmp_path.iterdir()}
    assert left == {"it", "exported"}, "something else was left behind"
    mine = tmp_path / "mine.safetensors"
    mine.write_text("precious")
    with pytest.raises(OutputError):
        result.save(mine)
    assert mine.read_text() == "precious"
