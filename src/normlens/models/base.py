"""Adapters: which module of a model is which component; their helpers and their registry."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from itertools import chain
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from normlens.errors import UnsupportedModelError, reason_of, require
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
    Experts,
    FeedForward,
    Head,
    HeadStep,
    Layer,
    Linear,
    Norm,
    ParallelFeedForward,
    Reach,
    Residual,
    Step,
)
from normlens.models.reading import UnreadableModule, read_tensor, without_idle_adapters
from normlens.models.reading import linear as linear  # which adapters take from here
from normlens.models.refusals import refusal, unknown
from normlens.models.unwrapping import body, composite_refusal, tower_config, unreadable, unwrapped
from normlens.trace.locking import Change, process_lock

# Modules of a model as components: what adapters are written with.


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


def _share(module: Any, part: Callable[[Tensor], Tensor]) -> Linear:
    whole = linear(module)
    bias = None if whole.bias is None else part(whole.bias)
    return Linear(part(whole.weight), bias, module, part)


def scaled(linear: Linear, factor: float | Tensor) -> Linear:
    """A map whose output, bias included, the model multiplies by `factor`: a number or (d,)."""
    return replace(linear, scale=linear.scale * factor)


def layer_norm(module: Any, offset: float = 0.0) -> Norm:
    """A LayerNorm, with or without γ and β; `offset` 1 where the model multiplies by 1 + γ."""
    inner = without_idle_adapters(module)
    gamma = read_tensor(inner, "weight")
    if gamma is not None and offset:
        # Models form 1 + γ in float32; in half precision γ's last digits would be lost.
        gamma = gamma.to(torch.promote_types(gamma.dtype, torch.float32)) + offset
    eps = inner.variance_epsilon if hasattr(inner, "variance_epsilon") else inner.eps
    return Norm(gamma, read_tensor(inner, "bias"), eps, True, module)


def rms_norm(module: Any, offset: float = 0.0) -> Norm:
    """An RMSNorm; `offset` 1 where the model multiplies by 1 + γ."""
    return replace(layer_norm(module, offset), beta=None, centred=False)


def affine(module: Any) -> Norm:
    """γ and β in a norm's place, without any deviation."""
    inner = without_idle_adapters(module)
    return Norm(read_tensor(inner, "weight"), read_tensor(inner, "bias"), None, False, module)


def sublayers(parts: Iterable[tuple[Norm, Step]], *, norm_first: bool) -> list[Step]:
    """Steps of a block: each part with its norm, before the part or behind its residual."""
    steps: list[Step] = []
    for norm, part in parts:
        if norm_first:
            steps += [Branch(), norm, part, Residual()]
        else:
            steps += [Branch(), part, Residual(), norm]
    return steps


def parallel_branches(
    norm: Norm, attention: Attention, feed_forward: FeedForward, other: Norm | None = None
) -> list[Step]:
    """Steps of a block whose branches stand side by side, behind one norm or two."""
    beside = ParallelFeedForward(feed_forward, other or norm)
    return [Branch(), norm, attention, beside, Residual()]


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
        value=linear(value),
        output=replace(linear(output), scale=scale),
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
        up=linear(up),
        down=replace(linear(down), scale=scale),
        activation=activation,
        gate=None if gate is None else linear(gate),
        module=down,
    )


def fused_gate(
    both: nn.Module, down: nn.Module, activation: str, scale: float | Tensor = 1.0
) -> FeedForward:
    """A gated block whose first projection gives the gate and then the values that it gates."""
    m = linear(down).weight.shape[0]
    up, gate = columns(both, m, 2 * m), columns(both, 0, m)
    return feed_forward_of(up, down, activation, gate, scale)


def last_third(module: nn.Module) -> Linear:
    """The value part of a fused projection laid out as all queries, all keys and all values."""
    width = linear(module).weight.shape[1]
    return columns(module, width // 3 * 2, width)


# Which head a model has on top, and how an adapter's description of it is asked for.
#
# transformers names a model by its task. An adapter describes the heads of its family, one method
# for each task; decoders share theirs.


#: The method that describes the head of an encoder–decoder that can generate.
GENERATING = "generating_head"
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
    "ForConditionalGeneration": GENERATING,
    "MTModel": GENERATING,
}


class NoHead(UnsupportedModelError):
    """A model whose scores cannot be explained, because nothing on top of it gives any."""


def head_method(class_name: str) -> str | None:
    """The adapter's method that describes the head of a class of this name; None: it has none."""
    return next((_METHODS[ending] for ending in _METHODS if class_name.endswith(ending)), None)


def read_head(adapter: Adapter) -> Head:
    """The head of an adapter's model, or an error that says what is in the way."""
    whole, of_pairs = adapter.whole, adapter.two_stacks
    name = type(whole).__name__
    # A T5 with its head is no body with a head on top, but one module.
    if whole is adapter.model and not (of_pairs and head_method(name) == GENERATING):
        instead = "ask for its vectors (direction=…), compare two texts (cosine), or "
        raise NoHead(
            f"{name} has no head, so it says nothing that could be explained; "
            f"{'' if of_pairs else instead}load a model with a head"
        )
    why = f"the head of {name} is not described"
    try:
        with torch.no_grad():
            head = adapter.head(whole)
        if head is not None:
            return head
    except UnreadableModule as error:
        raise UnsupportedModelError(error.line(adapter.name_of(error.module))) from error
    except AttributeError as error:
        why = f"{name} does not look as expected: {error}"
    raise UnsupportedModelError(
        f"{why}; write `head` in {type(adapter).__name__} or a subclass of it, which returns a "
        "normlens.layers.Head (`normlens help adapters` has an example)"
        + ("" if of_pairs else ", or explain a vector (direction=…)")
    )


def dense(module: Any) -> Dense:
    """A dense map."""
    return Dense(linear(module))


# Adapters: which module of a model family is which component, and in what order.
#
# An adapter wraps an unmodified model. It lists the blocks (layers) in the order in which they run
# and writes each block as steps of `normlens.layers`. It knows nothing of how parts are computed.


class Adapter:
    """One model family. Subclass it, say where its layers and their parts are, and `register` it.

    Most families have two branches in each layer, the attention and the feed-forward block: they
    write `attention` and `feed_forward` and name their norms. Others write `steps`.
    """

    #: Where the model keeps its layers: "encoder.layer".
    layers_path: str
    #: The modules that return α, the values and the attention's output, as paths inside a layer.
    attention_paths: tuple[str, str, str]
    #: The modules of the feed-forward block: up, down, and the gate if there is one.
    feed_forward_paths: tuple[str, ...]
    #: Whether the first of them gives the gate and then the values that it gates.
    fuses_gate: bool = False
    #: What the configuration calls the activation.
    activation_key: str = "hidden_act"
    #: The norms of the attention and of the feed-forward block, as paths inside a layer.
    norms: tuple[str, ...] = ()
    #: Whether these stand before the branches, or behind their residual connections.
    norm_first: bool = False
    #: Whether both branches read the layer's input, behind one norm or one each; a property where
    #: the configuration decides.
    side_by_side: bool = False
    #: Norms at the end of each branch, before its residual connection adds.
    branch_norms: tuple[str, ...] = ()
    #: The norm behind the last layer, if there is one, as a path inside the model.
    final_norm: str | None = None
    #: Whether norms are RMSNorms, and what is added to their γ: 1 where they multiply by 1 + γ.
    rms: bool = False
    norm_offset: float = 0.0

    #: The dense map, the norm and the output of a masked language model's head, as paths inside the
    #: model with its head, and the activation; None: that of the feed-forward blocks.
    masked_paths: tuple[str, str, str] | None = None
    masked_activation: str | None = None
    #: The dense map behind the first token's vector and the output of a classifier of sequences.
    pooled_paths: tuple[str, str] | None = None
    pooled_activation: str | None = "tanh"

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
        return list(attrgetter(self.layers_path)(self.model))

    def steps(self, block: nn.Module) -> list[Step]:
        """The steps of one layer, in the model's order."""
        attention, feed_forward = self.attention(block), self.feed_forward(block)
        if self.side_by_side and isinstance(feed_forward, FeedForward):
            [first], *others = filter(None, self.norms_at(block, self.norms))
            return parallel_branches(first, attention, feed_forward, *chain(*others))
        none: list[list[Norm]] = [[], []]
        norms = self.norms_at(block, self.norms) or none
        branch_norms = self.norms_at(block, self.branch_norms) or none
        steps: list[Step] = []
        parts = zip((attention, feed_forward), norms, branch_norms, strict=True)
        for part, outer, inner in parts:
            before, behind = (outer, []) if self.norm_first else ([], outer)
            steps += [Branch(), *before, part, *inner, Residual(), *behind]
        return steps

    def norms_at(self, owner: nn.Module, paths: tuple[str, ...]) -> list[list[Norm]]:
        """The norm at each path inside a layer or the model; none where there is none."""
        norms: list[list[Norm]] = []
        for path in paths:
            module = attrgetter(path)(owner)
            is_none = module is None or isinstance(module, nn.Identity)
            norms.append([] if is_none else [self.norm(module)])
        return norms

    def attention(self, block: nn.Module) -> Attention:
        """The attention of a layer."""
        weights, values, output = attrgetter(*self.attention_paths)(block)
        heads = self.config.num_attention_heads
        groups = getattr(self.config, "num_key_value_heads", heads)
        scale = self.factors(block)[0]
        return attention_of(weights, self.value(values), output, heads, groups, scale=scale)

    def value(self, module: nn.Module) -> Linear:
        """The projection of values, or its part of a fused one."""
        return linear(module)

    def feed_forward(self, block: nn.Module) -> FeedForward | Experts:
        """The feed-forward block of a layer."""
        up, down, *gate = attrgetter(*self.feed_forward_paths)(block)
        scale = self.factors(block)[1]
        if self.fuses_gate:
            return fused_gate(up, down, self.activation, scale)
        return feed_forward_of(up, down, self.activation, gate[0] if gate else None, scale)

    def factors(self, block: nn.Module) -> tuple[float | Tensor, float | Tensor]:
        """What the outputs of the attention and of the feed-forward block are multiplied by."""
        return 1.0, 1.0

    def norm(self, module: nn.Module) -> Norm:
        """A norm of this family."""
        return (rms_norm if self.rms else layer_norm)(module, self.norm_offset)

    @property
    def activation(self) -> str:
        """The activation of the feed-forward blocks."""
        return getattr(self.config, self.activation_key)

    def forward_patches(self) -> Mapping[tuple[nn.Module, str], Change]:
        """Methods, by module and name, to replace while the model is read; few families need it.

        They change no number, only what hooks see: blocks are to be called as modules, and modules
        to take and give vectors as (b, i, d).
        """
        return {}

    def end(self) -> list[HeadStep]:
        """The steps behind the last layer that belong to the body, such as a final norm."""
        paths = () if self.final_norm is None else (self.final_norm,)
        return [norm for norms in self.norms_at(self.model, paths) for norm in norms]

    def head(self, model: nn.Module) -> Head | None:
        """The head of `model`, which holds this adapter's body; None: it is not described.

        By default the method for the task in the name of the model's class says it.
        """
        methods = filter(None, (head_method(kind.__name__) for kind in type(model).__mro__))
        describe = getattr(self, next(methods, ""), None)  # few families see or hear
        return None if describe is None else describe(model)

    def score_scale(self, model: nn.Module) -> float:
        """What the model multiplies the scores of its next tokens by."""
        return 1.0

    def causal_head(self, model: nn.Module) -> Head | None:
        """A head that predicts the next token."""
        whole: Any = model
        cap = getattr(self.config, "final_logit_softcapping", None)
        output = scaled(linear(whole.get_output_embeddings()), self.score_scale(model))
        return Head(CAUSAL, ANY, tuple(self.end()), output=output, soft_cap=cap)

    def masked_head(self, model: nn.Module) -> Head | None:
        """A head that predicts masked tokens."""
        if self.masked_paths is None:
            return None
        module, norm, output = attrgetter(*self.masked_paths)(model)
        return self.words_head(module, self.masked_activation or self.activation, norm, output)

    def sequence_head(self, model: nn.Module) -> Head | None:
        """A head that classifies a sequence."""
        if self.pooled_paths is None:
            return None
        module, output = attrgetter(*self.pooled_paths)(model)
        return self.pooled_head(module, self.pooled_activation or self.activation, output)

    def token_head(self, model: nn.Module) -> Head | None:
        """A head that classifies every token."""
        whole: Any = model
        output = whole.classifier if hasattr(whole, "classifier") else whole.score
        return self.classifier(TOKENS, ANY, output)

    def classifier(self, task: str, reads: str, output: nn.Module, *steps: HeadStep) -> Head:
        """A head whose last module `output` gives one score for each class."""
        # CLIP's configuration of both towers names the classes, not that of its vision tower.
        names = self.whole.config.id2label or {}
        problem = getattr(self.config, "problem_type", None)
        return Head(
            task,
            reads,
            tuple(self.end()),
            steps,
            linear(output),
            labels={int(index): str(name) for index, name in names.items()},
            exclusive=problem in (None, "single_label_classification"),
        )

    def words_head(
        self, module: nn.Module, activation: str, norm: nn.Module, output: nn.Module | Linear
    ) -> Head:
        """The head of most masked language models: a dense map, its activation, a norm, words."""
        steps = dense(module), Elementwise(activation), layer_norm(norm)
        return Head(MASKED, ANY, tuple(self.end()), steps, linear(output))

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
        size = getattr(self.config, "type_vocab_size", None)
        return getattr(self.config, "vocab_size", 2) if size is None else size

    def layer(self, block: nn.Module) -> Layer:
        """One block as a `Layer`, without autograd history."""
        try:
            with torch.no_grad():
                return Layer(self.steps(block), self.reach(block))
        except UnreadableModule as error:
            raise UnsupportedModelError(error.line(self.name_of(error.module))) from error

    def name_of(self, module: nn.Module) -> str:
        """The name of a module in the body, or in the model with its head."""
        for model in (self.model, self.whole):
            for name, other in model.named_modules():
                if other is module:
                    return name
        return "a module"


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

    def sequence_head(self, model: Any) -> Head | None:
        return self.classifier(SEQUENCES, LAST, model.score)


# Which adapter reads which model: NormLens's own families, and those that others register.
#
# Families of other installed packages are entry points of the group `normlens.families`. They are
# imported when a model type is requested that is not built in, or when all families are listed.
# They replace no registered adapter: otherwise the adapter of a built-in family would depend on
# what was requested before.


GROUP = "normlens.families"

_log = logging.getLogger(__name__)
_lock = process_lock()  # reentrant: a package may list the families while it is imported
_loaded = False
_ADAPTERS: dict[str, type[Adapter]] = {}
_TINY: dict[str, dict[str, Any]] = {}


def register(
    *model_types: str, tiny: Mapping[str, object] | None = None
) -> Callable[[type[Adapter]], type[Adapter]]:
    """Class decorator: use this adapter for models whose ``config.model_type`` is one of these.

    `tiny` holds the settings of a configuration of these types, as small as it can be. Tables and
    tests build models of it (`normlens.models.tiny`); analyses do without.
    """
    require(
        model_types and all(isinstance(name, str) for name in model_types),
        'register takes model types: @normlens.register("my_model_type")',
    )
    require(
        tiny is None or isinstance(tiny, Mapping),
        f"register takes the settings of a tiny configuration, tiny={{…}}, not {tiny!r}",
    )

    def decorate(adapter: type[Adapter]) -> type[Adapter]:
        require(
            isinstance(adapter, type) and issubclass(adapter, Adapter),
            f"an adapter must be a subclass of normlens.Adapter, not {adapter!r}",
        )
        for name in model_types:
            _ADAPTERS[name] = adapter
            if tiny is not None:
                _TINY[name] = dict(tiny)
        return adapter

    return decorate


def bring_installed_families() -> bool:
    """Import the families of other installed packages, once; return whether that added any."""
    global _loaded
    with _lock:
        before = len(_ADAPTERS)
        if not _loaded:
            _loaded = True
            entries = ((_owner(entry), entry) for entry in entry_points(group=GROUP))
            for owner, entry in sorted(entries, key=lambda each: (each[0], each[1].name)):
                _import_families(owner, entry)
        return len(_ADAPTERS) > before


def _import_families(owner: str, entry: EntryPoint) -> None:
    """Import one package's families; what is registered already stays as it is."""
    adapters, tiny = dict(_ADAPTERS), dict(_TINY)
    try:
        entry.load()
    # A package can fail with any error, which must not affect the others.
    except (Exception, SystemExit) as error:
        _ADAPTERS.clear()
        _TINY.clear()
        _log.warning(
            "normlens: the families of the installed package %r are left out, because importing "
            "%s failed (%s); update or uninstall the package",
            owner,
            entry.value,
            f"{type(error).__name__}: {reason_of(error)}",
        )
    else:
        taken = [name for name, adapter in adapters.items() if _ADAPTERS[name] is not adapter]
        if taken:
            _log.warning(
                "normlens: the installed package %r registers model types that have an adapter "
                "already, which stays in use: %s; import %s before any other use of NormLens to "
                "have its own",
                owner,
                ", ".join(sorted(taken)),
                entry.module,
            )
    _ADAPTERS.update(adapters)
    _TINY.update(tiny)


def _owner(entry: EntryPoint) -> str:
    """The name by which pip knows the package of this entry point."""
    try:
        name = None if entry.dist is None else entry.dist.metadata["Name"]
    # An incomplete installation has no metadata, and versions of Python fail differently then.
    except Exception:
        name = None
    return name or entry.value


def supported_families() -> dict[str, type[Adapter]]:
    """Every registered model type with its adapter, those of other installed packages included.

    Families of NormLens that the installed transformers does not have yet are left out; others may
    be of models of their own.
    """
    from transformers import CONFIG_MAPPING

    bring_installed_families()
    return {
        name: adapter
        for name, adapter in _ADAPTERS.items()
        if name in CONFIG_MAPPING or not adapter.__module__.startswith("normlens.families.")
    }


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
        reason = refusal(model_type) or composite_refusal(config, _ADAPTERS, model)
        if reason is not None:
            raise UnsupportedModelError(reason)
    if adapter is None or (decoder_too and not adapter.two_stacks):
        raise unknown(model_type, two_stacks=decoder_too)
    return adapter


def adapt(model: nn.Module) -> Adapter:
    """The adapter of a model, which is read without any wrapper or head class on top."""
    model = unwrapped(model)
    if getattr(model, "config", None) is None:
        raise UnsupportedModelError(
            f"{type(model).__name__} has no `config`; pass a transformers model, or a module whose "
            "`config.model_type` is registered with normlens.register"
        )
    inner = body(model)
    adapter = adapter_class(inner.config, model)(inner)
    adapter.whole = model
    try:
        for block in {id(block): block for block in adapter.blocks()}.values():
            adapter.layer(block)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise unreadable(adapter.model, error) from error
    return adapter
