"""Explanations of one shape on a GPU: the passes through the model and back, recorded.

A short text's way through the model and back is thousands of small kernels, which take longer to
launch than to run. Between the two passes Python reads where the way back begins.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from normlens.analysing.captured import TELLS, Captured, Inputs, described
from normlens.analysing.model_state import ModelState
from normlens.explain.batch_run import BatchRun, OneStackRun
from normlens.explain.model_scores import ModelScores
from normlens.explain.questions import Question
from normlens.explain.readings import Start
from normlens.pairs import Item
from normlens.text import Encoded
from normlens.tracing.trace import reading

if TYPE_CHECKING:
    from normlens.explain.explainer import Explainer, Rows

#: Numbers of a layer's weights times tokens up to which launching takes longer than running.
WORK = 2e11
#: Tokens of a batch up to which its attention is recorded.
TOKENS = 2048


class RecordedPasses:
    """Both passes of a batch, with the tensors that they read and write."""

    pending = False  # whoever replays them reads the results before the next replay

    def __init__(
        self,
        explainer: Explainer,
        batch: list[Item],
        questions: Sequence[Question],
        asked: list[list[int]],
        inputs: Inputs,
        places: list[int] | None,
        state: ModelState,
    ):
        self.state, self.used = state, threading.Lock()

        def forward(given: dict[str, Any]) -> tuple[OneStackRun, ModelScores]:
            begun = explainer.begun(batch)
            assert isinstance(begun, OneStackRun), "pairs have no key"
            return begun, explainer.forward(begun, given, places)

        def back(given: dict[str, Any]) -> BatchRun:
            # Pinned memory must not be given back while work is captured, so each has its own.
            again = run.afresh()
            explainer.carry(again, _with(starts, given))
            return again

        adapter = explainer.lens.adapter
        with reading(adapter.whole, adapter):
            self._forward = Captured(forward, inputs)
            run, scores = self._forward.replay(inputs)
            starts = starts_of(explainer.rows(run, scores, questions, asked))
            self._back = Captured(back, _gradients(starts))
        self.bytes = self._forward.bytes + self._back.bytes

    def replay(
        self,
        explainer: Explainer,
        inputs: Inputs,
        questions: Sequence[Question],
        asked: list[list[int]],
    ) -> tuple[BatchRun, Rows] | None:
        """Start both passes on other inputs; the run has the results when the GPU is done.

        None if the model is no longer the one that was recorded, which is found out meanwhile.
        """
        run, scores = self._forward.replay(inputs)
        if not self.state.holds():
            return None
        rows = explainer.rows(run, scores, questions, asked)
        return self._back.replay(_gradients(starts_of(rows))), rows


def starts_of(rows: Rows) -> list[list[Start]]:
    """The starts by score and text; every text has as many questions as the others."""
    return [[row[t][1] for row in rows] for t in range(len(rows[0]))]


def _gradients(starts: Sequence[Sequence[Start]]) -> dict[str, Tensor]:
    return {
        f"{t}.{b}": start.gradient for t, row in enumerate(starts) for b, start in enumerate(row)
    }


def _with(starts: Sequence[Sequence[Start]], gradients: Inputs) -> list[list[Start]]:
    return [
        [replace(start, gradient=gradients[f"{t}.{b}"]) for b, start in enumerate(row)]
        for t, row in enumerate(starts)
    ]


def passes_key(
    explainer: Explainer,
    batch: Sequence[Item],
    asked: Sequence[Sequence[Question]],
    inputs: Inputs,
) -> Hashable | None:
    """What batches have in common that recorded passes can stand for; None: this one has none."""
    lens = explainer.lens
    sequences = [item for item in batch if isinstance(item, Encoded)]
    if not TELLS or len(sequences) < len(batch):
        return None
    tokens = sum(map(len, sequences))
    largest = max(
        sum(linear.weight.numel() for linear in layer.linear_maps) for layer in lens.layers
    )
    if tokens > TOKENS or tokens * largest > WORK:
        return None
    return (
        "passes",
        repr(explainer.options),
        explainer.head.task,
        tuple(len(sequence) for sequence in sequences),
        described(inputs),
        tuple(tuple((question.position, question.layer) for question in row) for row in asked),
    )
