"""The kind of attention that a model runs with: eager, which returns α, or fast, keeping q and k.

Eager attention returns its weights; under sdpa a model returns none. Where weights would take too
much memory, the model runs its own fast attention, and queries and keys are kept in their place.
The kind is read from a configuration, for the mask first and then in every layer, so a pass during
which it changed would apply one kind's mask in another kind's layers, and see what it must not. It
is therefore changed for one thread alone, while others run the model as it is set.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from functools import cache, partial
from typing import Any

from torch import Tensor, nn

from normlens.frozen.alpha import QueryKey
from normlens.layers import Layer
from normlens.trace.locking import Undo

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
    waiting: list[Any] = [vars(module).get("config") for module in model.modules()]
    seen: set[int] = set()
    while waiting:
        config = waiting.pop()
        of_config: Any = type(config)
        is_read = isinstance(getattr(of_config, "_attn_implementation", None), property)
        if not is_read or id(config) in seen:
            continue
        seen.add(id(config))
        waiting += [getattr(config, name, None) for name in config.sub_configs]
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


def can_keep_queries(layers: list[Layer]) -> bool:
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
        plain = module, query, key, value, attention_mask
        options = {"scaling": scaling, "is_causal": is_causal, "position_bias": position_bias}
        output, _ = sdpa_attention_forward(*plain, **options)
    else:  # sdpa has neither; the tiles of α are not kept
        values = value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
        output = given.mix(values).transpose(1, 2).contiguous()
    return output, replace(given, output=output)
