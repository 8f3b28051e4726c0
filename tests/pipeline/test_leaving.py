"""Results that leave behind a batch's last kernel; a CPU stands in for the GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import normlens
from normlens import lens as lens_module
from normlens.errors import CompletenessError
from normlens.models.tiny import tiny_model
from normlens.pipeline.call import Call

IDS = [5, 9, 2, 11, 4, 7, 3]


class Box:
    """An outbox whose numbers arrive when it is waited for."""

    def __init__(self) -> None:
        self.sent: list[tuple[Tensor, Tensor]] = []
        self.count = 0

    def send_flat(self, tensor: Tensor, into: Tensor) -> None:
        self.sent.append((tensor, into.fill_(0)))
        self.count += 1

    def wait(self) -> None:
        while self.sent:
            tensor, into = self.sent.pop()
            into.copy_(tensor)


class Event:
    """An event of a GPU that has always come so far."""

    def record(self) -> None: ...

    def synchronize(self) -> None: ...


@pytest.fixture
def box(monkeypatch: pytest.MonkeyPatch) -> Box:
    made = Box()

    def with_outbox(*given: Any) -> Call:
        return Call(*given[:5], made)  # type: ignore[arg-type]

    monkeypatch.setattr(lens_module, "Call", with_outbox)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    return made


@pytest.mark.parametrize(
    "options",
    [
        {"input_ids": IDS},
        {"input_ids": [IDS, IDS[:3], IDS[2:]], "batch_size": 2},
        {"input_ids": IDS, "heads": True, "statistics": True},
        {"input_ids": IDS, "map_dtype": "float16"},
    ],
)
@pytest.mark.parametrize("family", ["bert", "gpt2", "mixtral"])
def test_all_results_arrive(
    family: str, options: dict[str, Any], box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(family)
    found = normlens.load(model).maps(**options)
    assert box.count > 0
    monkeypatch.undo()
    expected = normlens.load(model).maps(**options)
    assert found == expected


def test_what_is_wrong_is_still_noticed(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    from normlens.pipeline import batches

    monkeypatch.setattr(batches, "TOLERANCE", dict.fromkeys(batches.TOLERANCE, 0.0))
    with pytest.raises(CompletenessError):
        normlens.load(tiny_model("bert")).maps(input_ids=IDS)
    assert box.count > 0
