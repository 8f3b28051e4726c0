"""Padding before token ids: a warning where the model itself gives another value, else none."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from one_case import in_one_case
from pair_examples import with_head

import normlens
from normlens.errors import NormLensWarning
from normlens.models.tiny import tiny_model

TEXT = [5, 6, 7, 8, 9, 10, 11]


def padded_with(pad: int, before: int = 3) -> dict[str, list[list[int]]]:
    mask = [0] * before + [1] * len(TEXT)
    return {"input_ids": [[pad] * before + TEXT], "attention_mask": [mask]}


def warned(is_expected: bool) -> AbstractContextManager[Any]:
    return pytest.warns(NormLensWarning, match="itself gives other") if is_expected else none()


def none() -> AbstractContextManager[Any]:
    return nullcontext()  # warnings are errors


def difference(model: Any, given: dict[str, list[list[int]]]) -> float:
    """How far the model's own vectors are from those of the text alone."""
    inputs = {name: torch.tensor(rows) for name, rows in given.items()}
    first = inputs["attention_mask"][0].tolist().index(1)
    with torch.no_grad():
        alone = model(torch.tensor([TEXT])).last_hidden_state[0]
        found = model(**inputs).last_hidden_state[0, first : first + len(TEXT)]
    return float(((found - alone).norm(dim=-1) / alone.norm(dim=-1)).max())


@in_one_case(
    ("family", "differs"),
    [
        ("bert", True),
        ("hunyuan_v1_dense", True),
        ("ministral3", True),
        ("deberta-v2", True),
        ("opt", False),
        ("roberta", False),
        ("llama", False),
    ],
)
def test_a_warning_tells_where_the_model_differs(family: str, differs: bool) -> None:
    model = tiny_model(family)
    given = padded_with(getattr(model.config, "pad_token_id", None) or 0)
    assert (difference(model, given) > 1e-3) == differs
    lens = normlens.load(model, False)
    expected = lens.maps(input_ids=TEXT)
    with warned(differs):
        (found,) = lens.maps(**given)  # type: ignore[arg-type]
    for scope in expected.scopes:
        assert (found[scope] == expected[scope]).all()
    with warned(differs):
        lens.explain(**given, position=-1, direction=[1.0] * model.config.hidden_size)  # type: ignore[arg-type]
    with warned(differs):
        lens.encode(**given)  # type: ignore[arg-type]


def test_one_warning_for_a_batch() -> None:
    lens = normlens.load(tiny_model("gpt2"), False)
    rows = [[0, 0, 5, 6], [5, 6, 7, 8], [0, 7, 8, 9]]
    masks = [[0, 0, 1, 1], [1, 1, 1, 1], [0, 1, 1, 1]]
    with pytest.warns(NormLensWarning) as caught:
        found = lens.maps(input_ids=rows, attention_mask=masks)
    assert len(caught) == 1
    assert [len(maps.tokens) for maps in found] == [2, 4, 3]


@in_one_case("error", [ValueError("pad on the right"), RuntimeError("not here")])
def test_padding_that_the_model_refuses_is_told(error: Exception) -> None:
    model = tiny_model("gpt2")

    def refuse(_: Any, __: Any, given: dict[str, Any]) -> None:
        if not bool(given["attention_mask"][:, 0].all()):
            raise error

    model.register_forward_pre_hook(refuse, with_kwargs=True)
    lens = normlens.load(model, False)
    with pytest.warns(NormLensWarning, match=f"fails .{error}.*could not be compared"):
        lens.encode(**padded_with(0))


@in_one_case(("family", "differs"), [("bart", True), ("t5", False)])
@in_one_case("side", ["", "decoder_"])
def test_either_side_of_an_encoder_decoder(family: str, differs: bool, side: str) -> None:
    lens = normlens.load(with_head(family), False)
    given: dict[str, Any] = {"input_ids": [TEXT], "decoder_input_ids": [[2, 5, 6]]}
    (expected,) = lens.maps(**given)
    given[f"{side}input_ids"] = [[1, 1, *given[f"{side}input_ids"][0]]]
    mask = [1] * len(given[f"{side}input_ids"][0])
    given[f"{side}attention_mask"] = [[0, 0, *mask[2:]]]
    with warned(differs):
        (found,) = lens.maps(**given)
    for scope in expected.scopes:
        assert (found[scope] == expected[scope]).all()
