"""Run an unmodified model once and hand over, layer by layer, what the frozen layer needs.

Hooks read each block's input, its attention weights and the vectors that it really computes. A
layer is handed to its consumer as soon as the block has run and is forgotten afterwards, so no
more than one layer's attention is ever held.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from normlens import layers as components
from normlens.errors import UnsupportedModelError
from normlens.frozen.attention import QueryKey
from normlens.gpu.matmul import are_many, split_linears
from normlens.inputs.text import Encoded, pad
from normlens.models.base import Adapter
from normlens.models.parts import SignalEncoder
from normlens.models.reading import class_name, execution_device, weights_dtype
from normlens.trace.checks import check_chunks, check_weights, explain_failure
from normlens.trace.locking import Hooks, Undo, exclusive, other_methods

# One layer as the model ran it, and where each part of it can be read.


#: Tokens whose vectors are kept of each linear module: enough to check that it computes x W + b,
#: and very little memory beside a layer's.
ROWS = 8


class Rows(NamedTuple):
    """Some rows of a module's input, and the same rows of its output."""

    input: Tensor  # (row, in)
    output: Tensor  # (row, out)


#: The arguments of a block's call.
Call = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass
class LayerTrace:
    """One layer as the model ran it."""

    index: int  # 0-based
    block: nn.Module
    layer: components.Layer
    x: Tensor  # (b, j, d) the layer's input
    alphas: tuple[Tensor | QueryKey, ...]  # (b, h, i, j) the weights of each attention, in order
    real: dict[int, Tensor]  # step index → the model's own vector behind that step (b, i, d)
    rows: dict[nn.Module, Rows]  # what went into the layer's linear modules, and came out
    output: Tensor  # (b, i, d) what the block returned
    call: Call  # how the model called the block
    #: (b, j, d) the vectors of each other sequence that an attention reads, by its name
    sources: dict[str, Tensor] = field(default_factory=dict)
    outputs: int = 0  # what the block returned in a tuple, the vector first; 0: the vector alone

    def to(self, dtype: torch.dtype) -> LayerTrace:
        """The same with all that the frozen layer is made of in `dtype`."""
        alphas, sources = list[Tensor | QueryKey](), dict[str, Tensor]()
        for alpha in self.alphas:
            alphas.append(alpha.to(dtype))
        for name, vectors in self.sources.items():
            sources[name] = vectors.to(dtype)
        made = {"layer": self.layer.to(dtype), "x": self.x.to(dtype), "alphas": tuple(alphas)}
        return replace(self, sources=sources, **made)  # type: ignore[arg-type]


Consumer = Callable[[LayerTrace], None]

#: What is read at a module: its input, some rows of both, or an output by its place among several.
INPUT, SOME_ROWS = -1, -2


class Checkpoint(NamedTuple):
    """Where the model's own vector behind a step can be read."""

    module: nn.Module | None = None  # None: the block itself
    place: int = 0
    factor: float | Tensor = 1.0  # what the model multiplies that vector by


def checkpoints(layer: components.Layer) -> dict[int, Checkpoint]:
    """Where the model's own vector behind each step of a scope can be read, by step.

    Behind a residual it is the input of the norm that follows, or the block's output at the end.
    """
    places: dict[int, Checkpoint] = {}
    following = None
    for index, step in reversed(list(enumerate(layer.steps))):
        if isinstance(step, components.Branch):
            continue
        if index not in layer.scope_of_step:
            break
        if following is None:
            places[index] = Checkpoint()
        elif isinstance(step, components.Residual):
            if isinstance(following, components.Norm) and following.module is not None:
                places[index] = Checkpoint(following.module, INPUT)
        elif not isinstance(step, components.ParallelFeedForward) and step.module is not None:
            factor: float | Tensor = 1.0
            if isinstance(step, components.Experts):
                factor = step.scale
            elif isinstance(step, (components.Attention, components.FeedForward)):
                last = step.output if isinstance(step, components.Attention) else step.down
                factor = last.scale if step.module is last.module else 1.0
            places[index] = Checkpoint(step.module, 0, factor)
        following = step
    return dict(sorted(places.items()))


def _at(output: Any, place: int) -> Any:
    """One of a module's several outputs, or its only one; None if there are fewer.

    transformers 5 returns a vector alone in some families, in a tuple in others.
    """
    if isinstance(output, (tuple, list)):
        return output[place] if len(output) > place else None
    return output


class Recorder:
    """Collects what the hooks see during one block and hands it over when the block ends."""

    def __init__(self, adapter: Adapter, wanted: set[int], consume: Consumer):
        self.adapter, self.wanted, self.consume = adapter, wanted, consume
        self.calls = 0
        self.watched: dict[nn.Module, tuple[components.Layer, dict[int, Checkpoint]]] = {}
        self.seen: dict[tuple[nn.Module | None, int], list[Any]] = {}
        self.rows: dict[nn.Module, Rows] = {}
        self.routing: tuple[Tensor, Tensor] | None = None  # experts and weights of all tokens

    def watch(self, block: nn.Module, hooks: Hooks, rows: bool = True) -> components.Layer:
        """Read this block whenever it runs; returns what the adapter says it is."""
        layer = self.adapter.layer(block)
        points = checkpoints(layer)
        self.watched[block] = layer, points
        # What is read of each module, which is hooked once: otherwise it would be read twice.
        read: dict[nn.Module | None, dict[int, None]] = defaultdict(dict)
        for point in points.values():
            read[point.module][point.place] = None
        for attention in layer.attentions:
            if attention.weights is None:
                raise UnsupportedModelError(
                    "the adapter does not say which module returns the weights"
                )
            read[attention.weights][attention.weights_at] = None
            if attention.source is not None:
                if attention.value.module is None:
                    raise UnsupportedModelError(
                        "the adapter does not say which module projects the values of "
                        f"{attention.source!r}, where its vectors can be read"
                    )
                read[attention.value.module][INPUT] = None
        if (experts := layer.experts) is not None:
            hooks.behind(experts.router, partial(self._keep_routing, experts))
            read[experts.shared_gate][0] = None
        for each in layer.linear_maps if rows else ():
            read[each.module][SOME_ROWS] = None
        for module, places in read.items():
            if module is not None:
                hooks.behind(module, partial(self._keep, places))
        hooks.before(block, self._begin)
        hooks.behind(block, self._end)
        return layer

    def _begin(self, *_: Any) -> None:
        self.seen, self.rows, self.routing = {}, {}, None

    def _keep(
        self,
        places: Iterable[int],
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: Any,
    ) -> None:
        if self.calls not in self.wanted:
            return
        x = [*args, *kwargs.values()][0]
        for place in places:
            value = x if place == INPUT else _at(output, max(place, 0))
            if place == SOME_ROWS:
                self._keep_rows(module, x, value)
            elif isinstance(value, (Tensor, QueryKey)):
                value = value.detach() if isinstance(value, Tensor) else value
                self.seen.setdefault((module, place), []).append(value)

    def _keep_rows(self, module: nn.Module, x: Tensor, y: Tensor) -> None:
        """Keep some rows of a call, evenly spread; a chunked block makes several calls."""
        kept = self.rows.get(module)
        if kept is not None and len(kept.input) >= ROWS:
            return
        tables = []
        for tensor in (x, y):
            table = tensor.detach().reshape(-1, tensor.shape[-1])
            # A view would keep the whole tensor alive.
            tables.append(table[:: max(1, len(table) // ROWS)][:ROWS].clone())
        if kept is not None:
            tables = [torch.cat(pair) for pair in zip(kept, tables, strict=True)]
        self.rows[module] = Rows(*tables)

    def _keep_routing(self, experts: components.Experts, _: nn.Module, *call: Any) -> None:
        if self.calls in self.wanted:
            self.routing = experts.read(*call)

    def _end(
        self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], returned: Any
    ) -> None:
        """Hand the layer over, if it is wanted, and forget it."""
        index, self.calls = self.calls, self.calls + 1
        if index not in self.wanted:
            return self._begin()
        layer, points = self.watched[block]
        alphas, sources = self._attention(index, layer)
        # Where layers lie on several devices, a hook sees vectors before they are brought along.
        device = alphas[0].device
        x = args[0] if args else kwargs["hidden_states"]
        x, output = x.detach().to(device), _at(returned, 0).to(device)
        real: dict[int, Tensor] = {}
        for step, (module, place, factor) in points.items():
            vectors = [output] if module is None else self.seen.get((module, place))
            if vectors:
                # A block that is chunked over the sequence calls its modules several times.
                vector = vectors[0] if len(vectors) == 1 else torch.cat(vectors, dim=1)
                vector = vector.reshape(*x.shape[:2], -1).to(device)
                is_scaled = isinstance(factor, Tensor) or factor != 1.0
                real[step] = vector * factor if is_scaled else vector
        for module, (before, behind) in self.rows.items():
            self.rows[module] = Rows(before.to(device), behind.to(device))
        for name, vectors_read in sources.items():
            sources[name] = vectors_read.to(device)
        if layer.experts is not None:
            layer = layer.routed(self._routing(index, layer.experts, x))
        several = len(returned) if isinstance(returned, (tuple, list)) else 0
        seen = real, self.rows, output, (args, kwargs), sources, several
        self.consume(LayerTrace(index, block, layer, x, alphas, *seen))
        self._begin()

    def _attention(
        self, index: int, layer: components.Layer
    ) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """The weights that each attention's module returned, and what it read elsewhere.

        One module may serve several attentions; other sequences are read by value projections.
        """
        calls: Counter[nn.Module | None] = Counter()
        alphas, sources = [], dict[str, Tensor]()
        for attention in layer.attentions:
            module = attention.weights
            returned = self.seen.get((module, attention.weights_at), [])[calls[module] :]
            if not returned or len(returned[0].shape) != 4:
                raise UnsupportedModelError(
                    f"layer {index} returned no attention weights; load the model with "
                    'attn_implementation="eager"'
                )
            calls[module] += 1
            alphas.append(returned[0])
            if attention.source is None:
                continue
            read = self.seen.get((attention.value.module, INPUT))
            if not read or read[0].dim() != 3:
                raise UnsupportedModelError(
                    f"the value projection of layer {index} read no vectors of "
                    f"{attention.source!r} in this call"
                )
            sources.setdefault(attention.source, read[0])
        return tuple(alphas), sources

    def _routing(self, index: int, experts: components.Experts, x: Tensor) -> components.Routing:
        """The experts that the tokens of `x` (b, i, d) used."""
        tokens = x.shape[:2]
        if self.routing is None or self.routing[0].shape[0] != tokens.numel():
            raise UnsupportedModelError(
                f"layer {index} did not show which experts its tokens use: "
                f"{class_name(experts.router)} did not run once for all of them; load the model "
                "without kernels that take its place"
            )
        places, weights = (tensor.detach().reshape(*tokens, -1) for tensor in self.routing)
        shared = None
        if experts.shared_gate is not None:
            shared = self.seen[experts.shared_gate, 0][-1].sigmoid().reshape(tokens)
        return components.Routing(places, weights, shared)


# The kind of attention that a model runs with: eager, which returns α, or fast, keeping q and k.
#
# Under sdpa a model returns no weights. Where weights would take too much memory, the model runs
# its own fast attention, and queries and keys are kept instead. The kind is read from a
# configuration, for the mask first and then in every layer; if it changed in between, a layer would
# apply the mask of the other kind. So it is changed for one thread alone, while others run the
# model as it is set.


EAGER = "eager"
#: The name under which transformers calls `fast_attention`.
FAST = "normlens"

#: The thread for which a configuration says another kind, and which, by the configuration's id.
_asked: dict[int, tuple[int, str]] = {}


def ask_for_attention(model: Any, kind: str, undo: Undo) -> None:
    """Let the model's configurations name this kind to this thread, and to it alone.

    A model whose modules were built for another kind than sdpa stays as it is, and is refused later
    because its layers return no weights.
    """
    if kind == FAST:
        _register()
    can_set = getattr(model, "_can_set_attn_implementation", None)
    settable = can_set is None or can_set()
    waiting: list[Any] = []
    for module in model.modules():
        waiting.append(vars(module).get("config"))
    seen: set[int] = set()
    while waiting:
        config = waiting.pop()
        of_config: Any = type(config)
        is_read = isinstance(getattr(of_config, "_attn_implementation", None), property)
        if not is_read or id(config) in seen:
            continue
        seen.add(id(config))
        for name in config.sub_configs:
            waiting.append(getattr(config, name, None))
        set_to = config._attn_implementation
        # Falcon reads the setting whenever it runs, but has no method that changes it.
        if set_to not in (kind, None) and (settable or set_to == "sdpa"):
            undo.append(partial(_asked.pop, id(config), None))
            undo.append(partial(object.__setattr__, config, "__class__", of_config))
            _asked[id(config)] = threading.get_ident(), kind
            object.__setattr__(config, "__class__", _answering_class(of_config))


@cache
def _answering_class(of_config: Any) -> type:
    """A configuration's class that answers one thread differently.

    It has the name of its class, by which transformers finds what belongs to a configuration.
    """

    def implementation(config: Any) -> Any:
        thread, kind = _asked.get(id(config), (None, None))
        is_here = thread == threading.get_ident()
        return kind if is_here else of_config._attn_implementation.fget(config)

    def reduced(config: Any, _: Any) -> Any:
        """A copy is of the plain class, and says what the original says to the thread."""
        state = {**vars(config), "_attn_implementation_internal": config._attn_implementation}
        return object.__new__, (of_config,), state

    changed = {
        "_attn_implementation": property(implementation, of_config._attn_implementation.fset),
        "__reduce_ex__": reduced,
    }
    names = {name: getattr(of_config, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(of_config)(of_config.__name__, (of_config,), {**names, **changed})


# Fast attention that returns queries and keys in the place of its weights.


def can_keep_queries(layers: list[components.Layer]) -> bool:
    """Whether all attentions of these layers are called through transformers' interface."""
    modules = {attention.weights for layer in layers for attention in layer.attentions}
    return all(module is not None and _has_interface(module) for module in modules)


def _has_interface(module: nn.Module) -> bool:
    return hasattr(sys.modules[type(module).__module__], "ALL_ATTENTION_FUNCTIONS")


@cache
def _register() -> None:
    """Make the kind known to transformers, with the masks of sdpa."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(FAST, fast_attention)
    AttentionMaskInterface.register(FAST, sdpa_mask)


def fast_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, QueryKey]:
    """What sdpa computes (b, i, h, e), and in the place of weights what they are formed from."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    looks_back = getattr(module, "is_causal", True) if is_causal is None else is_causal
    given = QueryKey(
        query,
        key,
        query.shape[-1] ** -0.5 if scaling is None else scaling,
        query.dtype,
        attention_mask,
        position_bias,
        causal=attention_mask is None and bool(looks_back) and query.shape[2] > 1,
        soft_cap=softcap,
        sinks=s_aux,
    )
    if softcap is None and s_aux is None:
        # A GPU's kernels keep each row's log-sum-exp for a gradient alone.
        is_half = query.is_cuda and query.dtype in (torch.float16, torch.bfloat16)
        caller: Any = module
        if query.is_cuda and not is_half and key.shape[1] < query.shape[1]:
            # For groups of heads in float32 PyTorch has no kernel but one that forms all weights.
            caller = SimpleNamespace(is_causal=looks_back)
            key, value = (
                x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value)
            )
        with torch.set_grad_enabled(is_half):
            asked = query.detach().requires_grad_() if is_half else query
            plain = caller, asked, key, value, attention_mask
            options = {"scaling": scaling, "is_causal": is_causal, "position_bias": position_bias}
            output, _ = sdpa_attention_forward(*plain, **options)
        if is_half:
            given, output = replace(given, log_sums=_log_sums(output)), output.detach()
    else:  # sdpa has neither; the tiles of α are not kept
        values = value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
        output = given.mix(values).transpose(1, 2).contiguous()
    return output, replace(given, output=output)


def _log_sums(output: Tensor) -> Tensor | None:
    """The log-sum-exp (b, h, i) of sdpa's logits, if its kernel kept one with its output."""
    node = output.grad_fn
    while node is not None and "ScaledDotProduct" not in node.name():
        node = node.next_functions[0][0] if node.next_functions else None
    for name in ("_saved_logsumexp", "_saved_log_sumexp"):
        sums = getattr(node, name, None)
        if isinstance(sums, Tensor):
            return sums.reshape((*sums.shape[:2], -1))
    return None


# What a model is called with, and how the caller's surroundings are kept out of the call.


def padding_id(adapter: Adapter) -> int:
    """The id of padding: any will do under the mask; some configurations name none, or −1."""
    named = getattr(adapter.config, "pad_token_id", None)
    return named if isinstance(named, int) and named >= 0 else 0


def model_inputs(
    adapter: Adapter, batch: Sequence[Encoded], device: torch.device
) -> dict[str, Any]:
    """The arguments of the model's call for a batch; texts are padded on the right."""
    padding = padding_id(adapter)
    read_first, signals = list[Encoded](), list[Tensor]()
    types: set[int] = set()
    for item in batch:
        first, *_ = item.sequences
        read_first.append(first)
        types.update(first.type_ids or ())
        if first.signal is not None:
            signals.append(first.signal)
    if signals:
        # Pictures or sounds of one shape; padding would be seen and heard.
        values = torch.stack(signals).to(device, weights_dtype(adapter.model))
        if isinstance(adapter, SignalEncoder):
            return {adapter.argument: values, **adapter.call_options(values)}
        inputs = {"input_features": values}
    else:
        inputs = pad(read_first, padding, device)
    # A tokenizer may give types that its model does not know.
    if types and max(types) >= adapter.token_types():
        del inputs["token_type_ids"]
    if batch[0].source is not None:
        inputs |= {f"decoder_{name}": row for name, row in pad(batch, padding, device).items()}
    return inputs


def plain_options(model: nn.Module) -> dict[str, Any]:
    """Switch the key–value cache off where there is one: it would keep every layer's keys.

    A model with a head may hand the option on to its body without naming it.
    """
    named = inspect.signature(model.forward).parameters
    *_, last = None, *named.values()
    if "use_cache" not in named and last is not None and last.kind is last.VAR_KEYWORD:
        named = inspect.signature(getattr(model, "base_model", model).forward).parameters
    return {"use_cache": False} if "use_cache" in named else {}


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Switch a caller's autocast off; a device that knows none (meta) needs nothing.

    It would run the model in one precision and the algebra in another.
    """
    is_on = device.type != "meta" and torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if is_on else nullcontext()


def trace(
    adapter: Adapter, inputs: dict[str, Tensor], layers: Sequence[int], consume: Consumer
) -> None:
    """Run the model on `inputs` and pass the trace of each wanted layer to `consume`.

    Other threads that trace the same model wait until this one is through.
    """

    def run() -> None:
        with reading(adapter.model, adapter):
            run_traced(adapter, adapter.model, inputs, layers, consume)

    exclusive(adapter.model, run)


@contextmanager
def reading(model: Any, adapter: Adapter, attention: str = EAGER) -> Iterator[None]:
    """Run a model as an analysis must: no dropout, gradients or autocast, weights of attention.

    With `FAST` attention queries and keys stand for the weights. `model` is the adapter's or holds
    it. The thread must be alone with the model (`normlens.trace.locking`).
    """
    with (
        torch.no_grad(),
        without_autocast(execution_device(adapter.model)),
        other_methods(adapter.forward_patches()),
        Undo() as undo,
    ):
        compiled = False
        for module in model.modules():
            if module.training:
                undo.append(partial(setattr, module, "training", True))
            if getattr(module, "_orig_mod", getattr(module, "_compiled_call_impl", None)):
                compiled = True
        model.eval()
        ask_for_attention(model, attention, undo)
        # transformers takes PyTorch's grouped product of experts, which has none for float64.
        experts = getattr(model.config, "_experts_implementation", None)
        if experts not in ("eager", None) and torch.float64 in {
            p.dtype for p in model.parameters()
        }:
            undo.append(partial(model.set_experts_implementation, experts))
            model.set_experts_implementation("eager")
        if torch.cuda.is_available():
            # Products and convolutions not in TF32, which cuDNN takes if nobody says no.
            products, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn
            undo.append(partial(torch.set_float32_matmul_precision, products))
            undo.append(partial(setattr, cudnn, "allow_tf32", cudnn.allow_tf32))
            torch.set_float32_matmul_precision("highest")
            cudnn.allow_tf32 = False
        # Compiled code may pass by the hooks.
        with torch.compiler.set_stance("force_eager") if compiled else nullcontext():
            yield


def run_traced(
    adapter: Adapter,
    model: nn.Module,
    inputs: dict[str, Any],
    layers: Sequence[int],
    consume: Consumer,
    *,
    spread: bool = False,
    rows: bool = True,
) -> Any:
    """Call `model`, which is the adapter's or holds it, and trace the layers; returns its output.

    For use inside `reading`. `rows` keeps some rows of what linear modules read and return.
    """
    blocks = list(adapter.blocks())
    if "input_ids" in inputs:  # sound has frames, which no family cuts into chunks
        check_chunks(blocks, inputs["input_ids"].shape[1])
    splitting = split_linears() if are_many(inputs) else None
    if splitting is not None:
        consume = splitting.outside(consume)
    recorder = Recorder(adapter, set(layers), consume)
    with Hooks() as hooks:
        described = []
        for block in dict.fromkeys(blocks):
            described.append(recorder.watch(block, hooks, rows))
        check_weights(model, described, blocks if spread else None)
        try:
            with nullcontext() if splitting is None else splitting:
                output = model(**inputs, **plain_options(model))
        except RuntimeError as error:
            explain_failure(model, error)
            raise
    if recorder.calls != len(blocks):
        raise UnsupportedModelError(
            f"the model ran {recorder.calls} blocks where its adapter lists {len(blocks)}"
        )
    return output


def run_again(adapter: Adapter, index: int, block: nn.Module, call: Call) -> LayerTrace:
    """Call one block as it was called before and trace it again, without rows of its modules.

    For use inside `reading`.
    """
    traces: list[LayerTrace] = []
    recorder = Recorder(adapter, {index}, traces.append)
    recorder.calls = index
    with Hooks() as hooks:
        recorder.watch(block, hooks, rows=False)
        block(*call[0], **call[1])
    return traces[0]
