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
from normlens.errors import InputError, UnsupportedModelError
from normlens.heads import ANY, CAUSAL, LAST, SEQUENCES, TOKENS, Head, HeadStep
from normlens.models.composites import composite_refusal
from normlens.models.heads import class_names, described_by_task
from normlens.models.installed import is_available, load_installed
from normlens.models.modules import (
    columns,
    head_columns,
    interleaved_values,
    layer_norm,
    linear,
    rms_norm,
    scaled,
    sublayers,
)
from normlens.models.reading import UnreadableModule, read_linear
from normlens.models.refusals import UnknownModelType, refusal
from normlens.models.unwrapping import (
    body,
    is_vision_classifier,
    tower_config,
    unreadable,
    unwrapped,
)

__all__ = [
    "Adapter",
    "Change",
    "Decoder",
    "adapt",
    "adapter_class",
    "bring_installed_families",
    "columns",
    "head_columns",
    "interleaved_values",
    "layer_norm",
    "linear",
    "register",
    "rms_norm",
    "scaled",
    "sublayers",
    "supported_families",
    "tiny_settings",
]

_ADAPTERS: dict[str, type[Adapter]] = {}
_TINY: dict[str, dict[str, Any]] = {}

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


def register(
    *model_types: str, tiny: Mapping[str, object] | None = None
) -> Callable[[type[Adapter]], type[Adapter]]:
    """Class decorator: use this adapter for models whose ``config.model_type`` is one of these.

    `tiny` holds the settings of a configuration of these types, as small as it can be. Tables and
    tests build models of it (`normlens.models.tiny`); analyses do without.
    """
    if not model_types or not all(isinstance(name, str) for name in model_types):
        raise InputError('register takes model types: @normlens.register("my_model_type")')
    if tiny is not None and not isinstance(tiny, Mapping):
        raise InputError(
            f"register takes the settings of a tiny configuration, tiny={{…}}, not {tiny!r}"
        )

    def decorate(adapter: type[Adapter]) -> type[Adapter]:
        if not (isinstance(adapter, type) and issubclass(adapter, Adapter)):
            raise InputError(f"an adapter must be a subclass of normlens.Adapter, not {adapter!r}")
        for name in model_types:
            _ADAPTERS[name] = adapter
            if tiny is not None:
                _TINY[name] = dict(tiny)
        return adapter

    return decorate


def supported_families() -> dict[str, type[Adapter]]:
    """Every registered model type with its adapter, those of other installed packages included.

    Families of NormLens that the installed transformers does not have yet are left out.
    """
    bring_installed_families()
    return {name: adapter for name, adapter in _ADAPTERS.items() if is_available(name, adapter)}


def bring_installed_families() -> bool:
    """Import the families of other installed packages, once; return whether that added any."""
    return load_installed(_ADAPTERS, _TINY)


def tiny_settings(model_type: str) -> dict[str, Any] | None:
    """The settings of a registered model type's tiny configuration, if it came with them."""
    if model_type not in _ADAPTERS:
        bring_installed_families()
    return _TINY.get(model_type)


def adapter_class(config: Any, model: nn.Module | None = None) -> type[Adapter]:
    """The adapter class for a configuration, or an error that says what to do.

    Given the model as well, the error can name the modules inside it.
    """
    config = tower_config(config)
    model_type = getattr(config, "model_type", None) or type(config).__name__
    decoder_too = getattr(config, "is_encoder_decoder", False)
    if model_type not in _ADAPTERS:
        bring_installed_families()
    adapter = _ADAPTERS.get(model_type)
    if adapter is None:
        reason = refusal(model_type) or composite_refusal(config, _ADAPTERS.__contains__, model)
        if reason is not None:
            raise UnsupportedModelError(reason)
    if adapter is None or (decoder_too and not adapter.two_stacks):
        raise UnknownModelType(model_type, two_stacks=decoder_too)
    return adapter


def adapt(model: nn.Module) -> Adapter:
    """The adapter of a model, which is read without any wrapper or head class on top."""
    model = unwrapped(model)
    config = getattr(model, "config", None)
    if config is None:
        raise UnsupportedModelError(
            f"{type(model).__name__} has no `config`; pass a transformers model, or a module whose "
            "`config.model_type` is registered with normlens.register"
        )
    inner = body(model)
    kind = adapter_class(inner.config if is_vision_classifier(model) else config, model)
    adapter = kind(inner)
    adapter.whole = model
    try:
        for block in {id(block): block for block in adapter.blocks()}.values():
            adapter.layer(block)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        family = getattr(config, "model_type", type(config).__name__)
        raise unreadable(adapter.model, family, error) from error
    return adapter
