"""The frozen network: every layer of a model that has run on a batch, frozen when it is needed.

What freezing needs is kept from the forward pass where it is small. Where it is not, only each
layer's input is, and the model runs the layer again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from normlens.errors import UnsupportedModelError
from normlens.frozen.layer import FrozenLayer, freeze
from normlens.frozen.network import FrozenReadout
from normlens.frozen.parts import relative_error
from normlens.frozen.scores import VECTORS, Errors, LayerScores
from normlens.gpu.matmul import splits
from normlens.inputs.text import Encoded
from normlens.layers import Reach, cast
from normlens.models.parts import DECODER, ENCODER, TwoStacks
from normlens.pipeline.comparisons import Seen, end_in_float32
from normlens.trace.checks import check_tokens
from normlens.trace.run import Call, LayerTrace, run_again, run_traced

if TYPE_CHECKING:
    from normlens.lens import Lens


#: The share of the memory limit that attention weights may take; the rest is for the way back.
KEPT_SHARE = 8


@dataclass(frozen=True)
class _Visited:
    """A layer that the model has run: enough to run it again."""

    block: nn.Module
    call: Call
    x: Tensor  # (b, i, d)
    reach: Reach
    outputs: int  # that the block returned in a tuple; 0: a vector alone
    trace: LayerTrace | None  # all of it, where that is small


class FrozenNetwork:
    """A model's layers, frozen at one batch; an encoder's come first.

    Each stack of layers has its own sequence of an item. Scores are read behind the last stack.
    """

    def __init__(self, lens: Lens, batch: Sequence[Encoded], rule: str, kept_bytes: int):
        self.lens, self.rule, self.dtype = lens, rule, lens.compute_dtype
        self.kept_bytes = kept_bytes  # that attention weights may still take
        sizes = [[len(sequence) for sequence in item.sequences] for item in batch]
        self.texts, self.tokens = len(batch), max(map(sum, sizes))  # of the longest
        self.lengths = [list(each) for each in zip(*sizes, strict=True)]  # by stack
        self.firsts, self.layer_words = [0], ["layer"]  # by stack
        if isinstance(lens.adapter, TwoStacks):
            self.firsts = [0, len(lens.adapter.encoder_blocks())]
            self.layer_words = [f"{ENCODER} layer", f"{DECODER} layer"]
        self.visited: list[_Visited] = []
        self.last: list[Tensor] = []  # (b, i, d), behind the last layer of each stack
        self.sources: dict[str, Tensor] = {}  # other sequences (b, k, d) that layers read, by name
        self.watch: Callable[[LayerTrace], object] | None = None  # is shown every layer that ran
        # Of the layer that was frozen last: the model's own vectors, and what misses them by scope.
        self.real: dict[int, Tensor] = {}
        self.errors: dict[str, Tensor] = {}

    def __len__(self) -> int:
        return len(self.visited)

    def stack_of(self, index: int) -> int:
        """The stack that a layer belongs to."""
        return bisect_right(self.firsts, index) - 1

    def name_of(self, index: int) -> str:
        """What errors call a layer."""
        stack = self.stack_of(index)
        return f"{self.layer_words[stack]} {index - self.firsts[stack]}"

    def forward(self, model: nn.Module, inputs: dict[str, Any], face: str = VECTORS) -> Any:
        """Run the model once, compare its layers with float32 where that is due; its output.

        `face` is what will be read of the frozen layers.
        """
        layers = range(self.lens.n_layers)
        output = run_traced(self.lens.adapter, model, inputs, layers, self.visit)
        kept: dict[Hashable, Seen] = {}
        for index, visited in enumerate(self.visited):
            lengths = self.lengths[self.stack_of(index)]
            seen = Seen(index, self.name_of(index), visited.block, visited.call, lengths)
            self.lens.float32_check.keep(kept, self.rule, face, seen)
        self.lens.float32_check.layers(self.rule, face, kept)
        return output

    def visit(self, trace: LayerTrace) -> None:
        """Keep what the way back needs of a layer that the model has run."""
        adapter, stack = self.lens.adapter, self.stack_of(trace.index)
        place = trace.index - self.firsts[stack]
        if place > 0 and not _same(trace.x, self.last[stack]):
            outside = adapter.outside_scopes()
            raise UnsupportedModelError(
                f"the model changes its vectors between layers {place - 1} and {place}, which no "
                f"layer describes{f' ({outside})' if outside else ''}; scores cannot be carried "
                "through that"
            )
        check_tokens(adapter, trace, self.lengths[stack])
        if self.watch is not None:
            self.watch(trace)
        for name, vectors in trace.sources.items():
            if name not in self.sources:  # all layers read the same
                self.sources[name] = vectors.detach().to(self.dtype)
        self.kept_bytes -= sum(alpha.nbytes for alpha in trace.alphas)
        self.last[stack:] = [trace.output.detach()]
        kept = replace(trace, rows={}) if self.kept_bytes >= 0 else None
        reach = trace.layer.reach
        self.visited.append(_Visited(trace.block, trace.call, trace.x, reach, trace.outputs, kept))

    def x(self, index: int) -> Tensor:
        """The input (b, i, d) of one layer, in the algebra's precision."""
        return self.visited[index].x.detach().to(self.dtype)

    def layer(self, index: int) -> FrozenLayer:
        """One layer, frozen, and compared with what the model computed."""
        visited, lengths = self.visited[index], self.lengths[self.stack_of(index)]
        trace = visited.trace
        if trace is None:
            trace = run_again(self.lens.adapter, index, visited.block, visited.call)
        layer = trace.layer.to(self.dtype, split=True)
        real = self.real = trace.real
        self.errors = {}
        split = splits(trace.alphas[0])

        def compare(step: int, y: Tensor) -> None:
            if step in real:
                error = relative_error(y, real[step], lengths)
                self._note(layer.scope_of_step[step], error)

        return freeze(
            layer,
            trace.x.to(self.dtype),
            [alpha if split else alpha.to(self.dtype) for alpha in trace.alphas],
            lengths,
            self.rule,
            sources=self.sources,
            parts=False,
            real=real,
            source_lengths={ENCODER: self.lengths[0]},
            observe=compare,
        )

    def compare_scores(self, frozen: FrozenLayer, scores: LayerScores) -> None:
        """Note how far blocks, whose output was taken from the model, miss it where scores read it.

        An error e of the output y_i, in no special direction, moves a score by ``g_i · e``, about
        ``‖g_i‖ ‖e‖ / √d``: so the root mean square of ``√d (g_i · e) / (‖g_i‖ ‖y_i‖)`` is about
        ``‖e‖ / ‖y_i‖``.
        """
        for step, passed in scores.passed.items():
            if step not in self.real:
                continue
            g, y = scores.gradients[step], self.real[step].to(self.dtype)
            total = passed if step not in scores.bias_part else passed + scores.bias_part[step]
            sizes = torch.linalg.vector_norm(g, dim=-1) * torch.linalg.vector_norm(y, dim=-1)
            missed = (g * y).sum(-1) - total
            read = sizes > 0
            relative = torch.where(read, missed / sizes.where(read, torch.ones_like(sizes)), 0)
            mean = relative.square().sum() / read.sum().clamp_min(1)
            error = (y.shape[-1] * mean).sqrt().nan_to_num(nan=float("inf"))
            self._note(frozen.layer.scope_of_step[step], error)

    def _note(self, scope: str, error: Tensor) -> None:
        worst = self.errors.get(scope)
        self.errors[scope] = error if worst is None else torch.maximum(worst, error)

    def encoder_end(self) -> tuple[FrozenReadout, list[str]]:
        """The frozen steps between the encoder's last layer and what the decoder reads."""
        described = self.lens.adapter
        assert isinstance(described, TwoStacks)
        with torch.no_grad():
            steps = [cast(step, self.dtype) for step in described.encoder_end()]
        readout = FrozenReadout.at(steps, self.last[0].to(self.dtype), self.rule)
        return readout, [f"END {step.symbol}" for step in steps]

    def in_float32(self, model: nn.Module, inputs: dict[str, Any]) -> Any:
        """What the model, which has run, returns in float32 from the last layer's vectors on."""
        returned: dict[nn.Module, Any] = {}
        for index, visited in enumerate(self.visited):
            last, count = self.last[self.stack_of(index)], visited.outputs
            returned[visited.block] = (last, *[None] * (count - 1)) if count else last
        return end_in_float32(model, inputs, returned)

    def end_errors(self, output: Any) -> Errors:
        """How far the frozen steps behind an encoder miss what the model computes in float32."""
        if len(self.firsts) == 1:
            return
        end, own = self.encoder_end()[0], output.encoder_last_hidden_state
        last, lengths, what = self.last[0].to(own), self.lengths[0], "the steps behind the encoder"
        yield what, float(relative_error(end.linear(last) + end.bias, own, lengths))
        # A score is read at each token in the direction of its own vector.
        g, bias_part = end.score(own)
        score = (g * last).sum(-1) + sum(share for share in bias_part if share is not None)
        size = own.square().sum(-1)
        yield what, float(relative_error(score[..., None], size[..., None], lengths))


def _same(a: Tensor, b: Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() or torch.equal(a, b)
