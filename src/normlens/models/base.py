"""Adapters: which module of a model is which component; their helpers and their registry."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import torch
from torch import Tensor, nn

from normlens.errors import InputError, UnsupportedModelError, reason_of
from normlens.layers import (
    ANY,
    CAUSAL,
    FIRST,
    LAST,
    MASKED,
    SEQUENCES,
    TOKENS,
    Attention,
    Branch,
    Dense,
    Elementwise,
    FeedForward,
    Head,
    HeadStep,
    Layer,
    Linear,
    Norm,
    Reach,
    Residual,
    Step,
)
from normlens.models.reading import UnreadableModule, read_linear, read_tensor, without_adapters
from normlens.models.refusals import UnknownModelType, refusal
from normlens.models.unwrapping import (
    body,
    composite_refusal,
    is_vision_classifier,
    tower_config,
    unreadable,
    unwrapped,
)
from normlens.trace.locking import process_lock

# Modules of a model as components: what adapters are written with.


def linear(module: Any) -> Linear:
    """An ``nn.Linear``, whose weight is (out, in), or GPT-2's Conv1D, whose weight is (in, out)."""
    return read_linear(module)


def as_linear(given: nn.Module | Linear) -> Linear:
    """The map of a module, or one that was read already."""
    return given if isinstance(given, Linear) else linear(given)


def columns(module: Any, start: int, stop: int) -> Linear:
    """Some output columns of a fused projection."""
    return _share(module, lambda t: t[..., start:stop])


def interleaved_values(module: Any, heads: int, parts: int = 3, place: int = -1) -> Linear:
    """The value part of a fused projection laid out head by head as (query, key, value).

    Groups of heads may take the place of heads: `parts` counts all that one of them holds, several
    queries for example, and `place` says which is the value.
    """
    return _share(module, lambda t: t.unflatten(-1, (heads, parts, -1))[..., place, :].flatten(-2))


def head_columns(module: Any, heads: int, start: int, stop: int | None = None) -> Linear:
    """Some columns of every head of a fused projection laid out head by head."""
    return _share(module, lambda t: t.unflatten(-1, (heads, -1))[..., start:stop].flatten(-2))


def scaled(linear: Linear, factor: float | Tensor) -> Linear:
    """A map whose output, bias included, the model multiplies by `factor`: a number or (d,)."""
    return replace(linear, scale=linear.scale * factor)


def _share(module: Any, part: Callable[[Tensor], Tensor]) -> Linear:
    whole = read_linear(module)
    bias = None if whole.bias is None else part(whole.bias)
    return Linear(part(whole.weight), bias, module, part)


def layer_norm(module: Any, offset: float = 0.0) -> Norm:
    """A LayerNorm, with or without γ and β; `offset` 1 where the model multiplies by 1 + γ."""
    base = without_adapters(module)
    return Norm(_gamma(base, offset), read_tensor(base, "bias"), _eps(base), True, module)


def rms_norm(module: Any, offset: float = 0.0) -> Norm:
    """An RMSNorm; `offset` 1 where the model multiplies by 1 + γ."""
    base = without_adapters(module)
    return Norm(_gamma(base, offset), None, _eps(base), False, module)


def affine(module: Any) -> Norm:
    """γ and β in a norm's place, without any deviation."""
    base = without_adapters(module)
    return Norm(read_tensor(base, "weight"), read_tensor(base, "bias"), None, False, module)


def _gamma(module: Any, offset: float) -> Tensor | None:
    gamma = read_tensor(module, "weight")
    if gamma is None or not offset:
        return gamma
    # Models form 1 + γ in float32; in half precision γ's last digits would be lost.
    return gamma.to(torch.promote_types(gamma.dtype, torch.float32)) + offset


def _eps(module: Any) -> float:
    return module.variance_epsilon if hasattr(module, "variance_epsilon") else module.eps


def sublayers(parts: Iterable[tuple[Norm, Step]], *, norm_first: bool) -> list[Step]:
    """Steps of a block: each part with its norm, before the part or behind its residual."""
    steps: list[Step] = []
    for norm, part in parts:
        if norm_first:
            steps += [Branch(), norm, part, Residual()]
        else:
            steps += [Branch(), part, Residual(), norm]
    return steps


def attention_of(
    weights: nn.Module,
    value: nn.Module | Linear,
    output: nn.Module,
    heads: int,
    groups: int | None = None,
    *,
    scale: float | Tensor = 1.0,
    **also: Any,
) -> Attention:
    """An attention from the modules that return α, values and the output vector.

    There are as many `groups` of values as heads unless it is said; the model multiplies the output
    by `scale`.
    """
    return Attention(
        value=as_linear(value),
        output=scaled(linear(output), scale),
        heads=heads,
        groups=heads if groups is None else groups,
        weights=weights,
        module=output,
        **also,
    )


def projected_attention(module: Any, source: str | None = None) -> Attention:
    """An attention whose projections are called `v_proj` and `out_proj`, as BART named them."""
    return attention_of(module, module.v_proj, module.out_proj, module.num_heads, source=source)


def feed_forward_of(
    up: nn.Module | Linear,
    down: nn.Module,
    activation: str,
    gate: nn.Module | Linear | None = None,
    scale: float | Tensor = 1.0,
) -> FeedForward:
    """A feed-forward block from its modules; the model multiplies its output by `scale`."""
    return FeedForward(
        up=as_linear(up),
        down=scaled(linear(down), scale),
        activation=activation,
        gate=None if gate is None else as_linear(gate),
        module=down,
    )


# Which head a model has on top, and how an adapter's description of it is asked for.
#
# transformers names a model by its task. An adapter describes the heads of its family, one method
# for each task; decoders share theirs.


#: How the name of a model's class ends, and the adapter's method that describes such a head.
_METHODS = {
    "ForCausalLM": "causal_head",
    "LMHeadModel": "causal_head",
    "ForMaskedLM": "masked_head",
    "ForPreTraining": "masked_head",
    "ForSequenceClassification": "sequence_head",
    "ForTokenClassification": "token_head",
    "ForImageClassification": "image_head",
    "ForImageClassificationWithTeacher": "teacher_head",
    "ForAudioFrameClassification": "token_head",
    "ForCTC": "ctc_head",
}


#: How the names of encoder–decoders with a head end.
_GENERATING = ("ForConditionalGeneration", "MTModel")


class NoHead(UnsupportedModelError):
    """A model whose scores cannot be explained, because nothing on top of it gives any."""


def read_head(adapter: Adapter) -> Head:
    """The head of an adapter's model, or an error that says what is in the way."""
    whole = adapter.whole
    name = type(whole).__name__
    # A T5 with its head is no body with a head on top, but one module.
    if whole is adapter.model and not (adapter.two_stacks and is_generating(name)):
        other = "ask for its vectors (direction=…), compare two texts (cosine), or "
        raise NoHead(
            f"{name} has no head, so it says nothing that could be explained; "
            f"{'' if adapter.two_stacks else other}load a model with a head"
        )
    with torch.no_grad():
        try:
            head = adapter.head(whole)
        except UnreadableModule as error:
            path = next((n for n, m in whole.named_modules() if m is error.module), "a module")
            raise UnsupportedModelError(error.line(path)) from error
        except AttributeError as error:
            raise _undescribed(adapter, f"{name} does not look as expected: {error}") from error
    if head is None:
        raise _undescribed(adapter, f"the head of {name} is not described")
    return head


def described_by_task(adapter: Adapter, whole: Any) -> Head | None:
    """The head that the adapter's method for the task of this class describes."""
    for kind in type(whole).__mro__:
        for ending, method in _METHODS.items():
            if kind.__name__.endswith(ending):
                describe = getattr(adapter, method, None)  # few families see or hear
                return None if describe is None else describe(whole)
    return None


def has_known_head(class_name: str) -> bool:
    """Whether a class of this name has a head of a task that adapters describe."""
    return class_name.endswith(tuple(_METHODS))


def is_generating(class_name: str) -> bool:
    """Whether a class of this name is an encoder–decoder with a head, which can generate."""
    return class_name.endswith(_GENERATING)


def _undescribed(adapter: Adapter, why: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{why}; write `head` in {type(adapter).__name__} or a subclass of it, which returns a "
        "normlens.layers.Head (`normlens help adapters` has an example)"
        + ("" if adapter.two_stacks else ", or explain a vector (direction=…)")
    )


# Helpers that heads are written with --------------------------------------------------------------


def dense(module: Any) -> Dense:
    """A dense map."""
    return Dense(read_linear(module))


def transform(module: Any, activation: str, norm: Norm) -> tuple[HeadStep, ...]:
    """What most masked language models do before they compare with words."""
    return (dense(module), Elementwise(activation), norm)


def scaled_scores(head: Head | None, factor: float) -> Head | None:
    """A head whose scores the model multiplies by `factor`."""
    if head is None or head.output is None:
        return head
    return replace(head, output=scaled(head.output, factor))


def class_names(config: Any) -> dict[int, str]:
    """The names of a classifier's classes."""
    return {int(index): str(name) for index, name in (config.id2label or {}).items()}


# Adapters: which module of a model family is which component, and in what order.
#
# An adapter wraps an unmodified model. It lists the blocks (layers) in the order in which they run
# and writes each block as steps of `normlens.layers`. It knows nothing of how parts are computed.


#: Takes a method of a module and returns the function to use instead.
Change = Callable[[Callable[..., object]], Callable[..., object]]


class Adapter:
    """One model family. Subclass it, write `blocks` and `steps`, and `register` it."""

    #: Whether a target sees no later source; a property where the configuration decides.
    causal: bool = False
    #: Whether the model is an encoder–decoder (`normlens.models.parts`).
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

    def forward_patches(self) -> Mapping[tuple[nn.Module, str], Change]:
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

    def words_head(
        self, module: nn.Module, activation: str, norm: nn.Module, output: nn.Module | Linear
    ) -> Head:
        """The head of most masked language models: a dense map, its activation, a norm, words."""
        steps = transform(module, activation, layer_norm(norm))
        return Head(MASKED, ANY, tuple(self.end()), steps, as_linear(output))

    def pooled_head(self, module: nn.Module, activation: str, output: nn.Module) -> Head:
        """A classifier of sequences behind a dense map of the first token's vector."""
        return self.classifier(SEQUENCES, FIRST, output, dense(module), Elementwise(activation))

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


# Families of other installed packages: entry points of the group `normlens.families`.
#
# They are imported when a model type is requested that is not built in, or when all families are
# listed. They replace no registered adapter: otherwise the adapter of a built-in family would
# depend on what was requested before.


GROUP = "normlens.families"

_log = logging.getLogger(__name__)
_lock = process_lock()  # reentrant: a package may list the families while it is imported
_loaded = False


def is_available(model_type: str, adapter: type) -> bool:
    """Whether there can be a model for an adapter: transformers may be older than the adapter.

    Only families of NormLens itself are asked about; others may be of models of their own.
    """
    from transformers import CONFIG_MAPPING

    built_in = adapter.__module__.startswith("normlens.families.")
    return not built_in or model_type in CONFIG_MAPPING


def load_installed(adapters: dict[str, Any], tiny: dict[str, Any]) -> bool:
    """Import the families of other packages, once; return whether this call added any.

    Importing them fills `adapters` and `tiny`, the two registries.
    """
    global _loaded
    with _lock:
        if _loaded:
            return False
        _loaded = True
        entries = sorted(entry_points(group=GROUP), key=lambda entry: (_owner(entry), entry.name))
        new = [_load(entry, adapters, tiny) for entry in entries]
        return any(new)


def _load(entry: EntryPoint, adapters: dict[str, Any], tiny: dict[str, Any]) -> bool:
    """Import one package's families; return whether that added any."""
    before, tiny_before = dict(adapters), dict(tiny)
    try:
        entry.load()
    # A package can fail with any error, which must not affect the others.
    except (Exception, SystemExit) as error:
        for registry, state in ((adapters, before), (tiny, tiny_before)):
            registry.clear()
            registry.update(state)
        reason = f"{type(error).__name__}: {reason_of(error)}"
        _log.warning(
            "normlens: the families of the installed package %r are left out, because importing "
            "%s failed (%s); update or uninstall the package",
            _owner(entry),
            entry.value,
            reason,
        )
        return False
    taken = sorted(name for name, adapter in before.items() if adapters[name] is not adapter)
    adapters.update(before)
    tiny.update(tiny_before)
    if taken:
        _log.warning(
            "normlens: the installed package %r registers model types that have an adapter "
            "already, which stays in use: %s; import %s before any other use of NormLens to "
            "have its own",
            _owner(entry),
            ", ".join(taken),
            entry.module,
        )
    return len(adapters) > len(before)


def _owner(entry: EntryPoint) -> str:
    """The name by which pip knows the package of this entry point."""
    try:
        name = None if entry.dist is None else entry.dist.metadata["Name"]
    # An incomplete installation has no metadata, and versions of Python fail differently then.
    except Exception:
        name = None
    return name or entry.value


# Which adapter reads which model: NormLens's own families, and those that others register.


_ADAPTERS: dict[str, type[Adapter]] = {}
_TINY: dict[str, dict[str, Any]] = {}


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
