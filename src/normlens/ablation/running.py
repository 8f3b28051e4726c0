"""One batch of sequences, the intact model and every ablation.

The intact pass keeps what layers returned, within a memory limit. An ablation then starts behind
the last kept layer before its first one: the embeddings and the head run again, the layers before
it do not. That gives the same bits as a whole pass, which is checked on the first batch; where it
does not hold, every pass is a whole one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from normlens.ablation.interventions import Interventions
from normlens.ablation.kinds import Ablation
from normlens.ablation.layer_hooks import LayerHooks
from normlens.ablation.loss_base import Loss
from normlens.ablation.passes import body_pass, last_vectors, model_ready
from normlens.ablation.plan import Plan
from normlens.ablation.prefix import layers_to_keep, start_behind
from normlens.ablation.questions import Outcome, Question
from normlens.ablation.statistics import Statistics
from normlens.errors import MemoryLimitError, NormLensError, is_out_of_memory, process_limit
from normlens.models.unwrapping import padding_spoils
from normlens.pipeline.progress import Progress
from normlens.plan.costs import GIB
from normlens.trace.run import model_inputs

if TYPE_CHECKING:
    from normlens.lens import Lens

#: Bytes of layers' outputs that a batch keeps by default.
KEPT_LIMIT = GIB


@dataclass(frozen=True)
class Outcomes:
    """The losses of a batch's sequences: intact, and under each ablation."""

    intact: list[Outcome]
    ablated: list[list[Outcome]]  # [ablation][sequence]


class Runner:
    """Runs the ablations of one model; made once, used for all batches."""

    def __init__(
        self,
        lens: Lens,
        loss: Loss,
        ablations: Sequence[Ablation],
        *,
        statistics: Statistics | None = None,
        seed: int = 0,
        memory_limit: int | None = None,
        keep: bool = True,
    ):
        """Refuse ablations that the model does not have, before anything runs.

        `keep` false runs all layers for every ablation. `memory_limit` (bytes) bounds what a batch
        keeps of its layers.
        """
        self.lens, self.loss, self.ablations = lens, loss, list(ablations)
        self.interventions = Interventions(lens, Plan(lens.layers, lens.name), statistics, seed)
        for ablation in self.ablations:
            self.interventions.check(ablation)
        self._limit = memory_limit or KEPT_LIMIT
        #: Whether layers are passed by; None until the first batch has shown that they can be.
        self.passes_by: bool | None = None if keep else False
        #: Layers that have run, and that were passed by, over all batches and passes.
        self.layers_run = self.layers_passed = 0
        self._first = True

    def run(self, questions: Sequence[Question], progress: Progress | None = None) -> Outcomes:
        """The losses of some sequences, run as one padded batch, or halves of it if memory ends.

        `progress` is called with the passes done and all of them.
        """
        if not questions:
            return Outcomes([], [[] for _ in self.ablations])
        answers = self._run(questions, progress)
        if answers is None:
            half = len(questions) // 2
            parts = self.run(questions[:half], progress), self.run(questions[half:], progress)
            return _joined(*parts)
        judged = [
            [
                self.loss.outcome(question, answer, intact)
                for question, answer, intact in zip(questions, row, answers[0], strict=True)
            ]
            for row in answers
        ]
        return Outcomes(judged[0], judged[1:])

    def _run(
        self, questions: Sequence[Question], progress: Progress | None
    ) -> list[list[Tensor]] | None:
        """The answers of a batch; None where it runs out of memory and fewer may not."""
        try:
            return model_ready(self.lens, lambda: self._answers(questions, progress))
        except (RuntimeError, MemoryError) as error:
            if isinstance(error, NormLensError) or not is_out_of_memory(error):
                raise
            if len(questions) == 1:
                longest = max(len(text) for text in questions[0].texts)
                raise MemoryLimitError(
                    f"{longest} tokens do not fit into the memory of {self.lens.device}; use "
                    "shorter texts, less memory for kept layers, or another device"
                    f"{process_limit()}"
                ) from error
        return None

    def _answers(
        self, questions: Sequence[Question], progress: Progress | None
    ) -> list[list[Tensor]]:
        """The answers of the intact model, then under each ablation, to every question."""
        lengths = [len(text) for question in questions for text in question.texts]
        if len(lengths) > 1 and padding_spoils(self.lens.layers, self.lens.dtype, lengths):
            return self._answers_alone(questions, progress)
        batch = _Batch.of(self.lens, questions)
        if self._first:
            self.loss.check(questions[0])
            self._first = False
        kept: dict[int, Any] = {}
        passes = len(self.ablations) + 1
        answers = [self._pass(batch, None, kept, watching=self._keeper(batch, kept))]
        for done, ablation in enumerate(self.ablations, 1):
            if progress is not None:
                progress(done, passes)
            answers.append(self._pass(batch, ablation, kept))
        if progress is not None:
            progress(passes, passes)
        return answers

    def _answers_alone(
        self, questions: Sequence[Question], progress: Progress | None
    ) -> list[list[Tensor]]:
        """The same with every text by itself, where padding would spoil it."""
        columns = []
        for question in questions:
            parts = [self._answers([part], progress) for part in question.parts]
            answers = [[row[0] for row in rows] for rows in zip(*parts, strict=True)]
            columns.append([torch.cat(both) if len(both) > 1 else both[0] for both in answers])
        return [list(row) for row in zip(*columns, strict=True)]

    def _pass(
        self,
        batch: _Batch,
        ablation: Ablation | None,
        kept: dict[int, Any],
        watching: Callable[[LayerHooks], None] | None = None,
    ) -> list[Tensor]:
        skip = -1 if ablation is None else start_behind(ablation, kept)
        with self.interventions.applied(
            ablation, batch.keys, kept=kept, skip=skip, watching=watching
        ):
            output = body_pass(self.lens, batch.inputs)
        self.layers_passed += skip + 1
        self.layers_run += self.lens.n_layers - skip - 1
        if ablation is None and kept and self.passes_by is None:
            self.passes_by = self._same_bits(batch, last_vectors(output), kept)
        if not self.passes_by:
            kept.clear()
        return self.loss.read(batch.questions, batch.inputs, output)

    def _keeper(self, batch: _Batch, kept: dict[int, Any]) -> Callable[[LayerHooks], None] | None:
        """Keeps what layers return in the intact pass."""
        if self.passes_by is False:
            return None
        each = batch.inputs["input_ids"].numel() * width(self.lens) * self.lens.dtype.itemsize
        layers = layers_to_keep(self.ablations, self.lens.n_layers, each, self._limit)

        def watch(hooks: LayerHooks) -> None:
            for layer in layers:
                hooks.keep(layer, kept)

        return watch

    def _same_bits(self, batch: _Batch, intact: Tensor, kept: dict[int, Any]) -> bool:
        """Whether the model gives the same bits when layers are passed by, few or many."""
        for skip in {min(kept), max(kept)}:
            try:
                with self.interventions.applied(None, batch.keys, kept=kept, skip=skip):
                    again = last_vectors(body_pass(self.lens, batch.inputs))
            except (RuntimeError, TypeError, ValueError, AttributeError, LookupError) as error:
                if is_out_of_memory(error):
                    raise
                return False  # such a model needs more of its layers than their vectors
            if not torch.equal(again, intact):
                return False
        return True


def _joined(first: Outcomes, second: Outcomes) -> Outcomes:
    """The outcomes of two batches as those of one."""
    rows = zip(first.ablated, second.ablated, strict=True)
    return Outcomes(first.intact + second.intact, [a + b for a, b in rows])


@dataclass(frozen=True)
class _Batch:
    """Questions with the inputs of the model that they need."""

    questions: Sequence[Question]
    keys: list[str]  # of every row
    inputs: dict[str, Tensor]

    @classmethod
    def of(cls, lens: Lens, questions: Sequence[Question]) -> _Batch:
        texts = [text for question in questions for text in question.texts]
        keys = [key for question in questions for key in question.keys]
        return cls(questions, keys, model_inputs(lens.adapter, texts, lens.device))


def width(lens: Lens) -> int:
    """The model's width d."""
    return lens.layers[0].attention.output.weight.shape[1]
