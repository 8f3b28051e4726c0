"""What every result promises, tried with one of each kind."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from heads import headed
from one_case import in_one_case
from pair_examples import fast_tokenizer, with_head

import normlens
from normlens import cli
from normlens.cli import tools as pages
from normlens.errors import InputError, MapsFileError, NormLensError, OptionError, OutputError
from normlens.models.reading import UnreadableModule
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


def kinds(base: type) -> set[type]:
    """A class of the package, and every one that inherits from it."""
    each = [kind for kind in base.__subclasses__() if kind.__module__.startswith("normlens.")]
    return {base}.union(*map(kinds, each))


# What a module's reader raises becomes an error that names the module.
@in_one_case("kind", kinds(NormLensError) - {UnreadableModule}, ids=lambda kind: kind.__name__)
def test_every_error_is_one_line_and_leads_to_a_page(
    kind: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("option", "{option} is wrong; do this") if kind is OptionError else ("wrong; do this",)
    error = pickle.loads(pickle.dumps(kind(*words)))  # as from a worker
    assert type(error) is kind

    def fail() -> None:
        raise error

    monkeypatch.setattr("normlens.loading.doctor.self_check", fail)
    monkeypatch.setattr("os._exit", lambda status: None)  # behind a thread that is stuck
    assert cli.main(["check"]) >= 2  # 1 is a check that failed
    err = capsys.readouterr().err
    assert re.fullmatch(r"error: .*wrong; do this\n", err)
    documented = [each for each in kind.__mro__ if each.__name__ in pages.topics()]
    assert documented
    text = pages.page(documented[0].__name__)
    assert "## Cause" in text
    assert "## Cure" in text


def test_every_kind_of_result_is_tried() -> None:
    names = {kind.__name__ for kind in kinds(Result) - PARTS}
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

    few = (
        {"layers": 0, "scopes": "FF"} if kind.startswith("Maps") else {}
    )  # pictures take most of the time
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
