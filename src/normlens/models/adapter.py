"""Adapters: which module of a model family is which component, and in what order.

An adapter wraps an unmodified model. It lists the blocks (layers) in the order in which they run
and writes each block as steps of `normlens.components`. It knows nothing of how parts are
computed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from normlens.components import Layer, Reach, Step
from normlens.errors import UnsupportedModelError
from normlens.heads import ANY, CAUSAL, LAST, SEQUENCES, TOKENS, Head, HeadStep
from normlens.models.heads import class_names, described_by_task
from normlens.models.reading import UnreadableModule, read_linear

#: Takes a method of a module and returns the function to use instead.
Change = Callable[[Callable[..., object]], Callable[..., object]]


class Adapter:
    """One model family. Subclass it, write `blocks` and `steps`, and `register` it."""

    #: Whether a target sees no later source; a property where the configuration decides.
    causal: bool = False
    #: Whether the model is an encoder–decoder (`normlens.models.two_stacks`).
    two_stacks: bool = False
    #: Whether texts are padded to the model's length, and the padding is read like any token.
    reads_padding: bool = False
    #: Whether tokens see padding beside them all the same, so that it would change their vectors;
    #: a property where the configuration decides.
    padding_leaks: bool = False

    def __init__(self, model: nn.Module):
        self.model: Any = model
        self.config: Any = model.config
        #: The same model with its head, where it was given with one.
        self.whole: Any = model

    def blocks(self) -> Sequence[nn.Module]:
        """The layers in the order in which the model runs them; a shared one appears repeatedly."""
        raise NotImplementedError

    def steps(self, block: nn.Module) -> list[Step]:
        """The steps of one layer, in the model's order."""
        raise NotImplementedError

    def stand_ins(self) -> Mapping[tuple[nn.Module, str], Change]:
        """Methods, by module and name, to replace while the model is read; few families need it.

        They change no number, only what hooks see: blocks are to be called as modules, and modules
        to take and give vectors as (b, i, d).
        """
        return {}

    def end(self) -> list[HeadStep]:
        """The steps behind the last layer that belong to the body, such as a final norm."""
        return []

    def head(self, model: nn.Module) -> Head | None:
        """The head of `model`, which holds this adapter's body; None: it is not described.

        By default the method for the task in the name of the model's class says it.
        """
        return described_by_task(self, model)

    def causal_head(self, model: nn.Module) -> Head | None:
        """A head that predicts the next token."""
        cap = getattr(self.config, "final_logit_softcapping", None)
        whole: Any = model
        output = read_linear(whole.get_output_embeddings())
        return Head(CAUSAL, ANY, tuple(self.end()), output=output, soft_cap=cap)

    def masked_head(self, model: nn.Module) -> Head | None:
        """A head that predicts masked tokens."""
        return None

    def sequence_head(self, model: nn.Module) -> Head | None:
        """A head that classifies a sequence."""
        return None

    def token_head(self, model: nn.Module) -> Head | None:
        """A head that classifies every token."""
        whole: Any = model
        output = whole.classifier if hasattr(whole, "classifier") else whole.score
        return self.classifier(TOKENS, ANY, output)

    def classifier(self, task: str, reads: str, output: nn.Module, *steps: HeadStep) -> Head:
        """A head whose last module `output` gives one score for each class."""
        problem = getattr(self.config, "problem_type", None)
        return Head(
            task,
            reads,
            tuple(self.end()),
            steps,
            read_linear(output),
            labels=class_names(self.config),
            exclusive=problem in (None, "single_label_classification"),
        )

    def window(self, block: nn.Module) -> int | None:
        """How many tokens to the left a target sees, itself included; None: all of them."""
        return None

    def reach(self, block: nn.Module) -> Reach:
        """Which sources a target of this layer may attend to."""
        window = self.window(block)
        back = None if window is None else window - 1
        return Reach(back, 0 if self.causal else back)

    def max_positions(self) -> int | None:
        """The longest sequence that the model's positions allow; None if there is no limit."""
        return getattr(self.config, "max_position_embeddings", None)

    def outside_scopes(self) -> str | None:
        """What mixes tokens outside every layer, in words; no scope shows it."""
        return None

    def source_tokens(self, name: str, inputs: Mapping[str, Tensor]) -> list[list[str]]:
        """The tokens of the other sequence `name` that attentions read, for each row of `inputs`.

        Only families whose `Attention` has a `source` write it. Padding is left out.
        """
        raise UnsupportedModelError(
            f"an attention of {type(self.model).__name__} reads another sequence ({name!r}), and "
            f"the adapter {type(self).__name__} does not say what its tokens are; write its "
            "`source_tokens` (normlens help adapters)"
        )

    def token_types(self) -> int:
        """The number of token types that the model distinguishes; 0: it takes none."""
        if "token_type_ids" not in inspect.signature(self.model.forward).parameters:
            return 0
        # GPT-2 and its kin have no table of types; they look them up among the words.
        sizes = (getattr(self.config, name, None) for name in ("type_vocab_size", "vocab_size"))
        return next((size for size in sizes if size is not None), 2)

    def layer(self, block: nn.Module) -> Layer:
        """One block as a `Layer`, without autograd history."""
        with torch.no_grad():
            try:
                return Layer(self.steps(block), self.reach(block))
            except UnreadableModule as error:
                name = self.name_of(error.module)
                raise UnsupportedModelError(error.line(name)) from error

    def name_of(self, module: nn.Module) -> str:
        """The name of a module in the model."""
        names = (name for name, other in self.model.named_modules() if other is module)
        return next(names, "a module")


class Decoder(Adapter):
    """A decoder whose mask comes from transformers, which can make it bidirectional."""

    @property
    def causal(self) -> bool:  # type: ignore[override]
        return bool(getattr(self.config, "is_causal", True))

    def reach(self, block: Any) -> Reach:
        if self.causal:
            return super().reach(block)
        # The window of a bidirectional mask does not count the target itself.
        window = self.window(block)
        return Reach(window, window)

    def sequence_head(self, model: nn.Module) -> Head | None:
        whole: Any = model
        return self.classifier(SEQUENCES, LAST, whole.score)

    def sliding_window(self, attention: Any) -> int | None:
        """The sliding window of a layer, if any; masks read its width in the configuration."""
        width = getattr(attention, "sliding_window", None)  # some have it in those layers alone
        return None if width is None else self.config.sliding_window
