"""Small configurations of any model type of transformers, made from the names of its settings."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

from normlens.errors import reason_of

#: Settings by name, the first pattern that matches decides. Widths are heads × head dimension.
SMALL = tuple(
    (re.compile(pattern), value)
    for pattern, value in (
        (r"vocab_size(_per_layer_input)?$|^n_vocab$|^n_words$", 64),
        (r"(kv|key_value)_heads$|^num_kv|^n_kv_heads$", 2),
        (r"experts_per_tok|^moe_k$|^moe_top_?k$|^num_experts_per_token$", 2),
        (r"^(num|n)_(local_|routed_|total_)?experts$|^moe_num_experts$", 4),
        (r"^n_groups?$|^topk_group$|^n_shared_experts$|^first_k_dense_replace$", 1),
        (r"(heads|n_head|nhead)$", 4),
        (r"head_dim(ension)?$|^d_kv$|^kv_channels$|^head_size$|^rotary_dim$", 4),
        (r"lora_rank$", 8),
        (r"(_layers|^n_layers?|^depth|_depth|num_blocks|^layers)$", 2),
        (r"intermediate_size|(ffn|feedforward)_(hidden_size|dim)|^d_ff$|^n_inner$|^d_inner$", 24),
        (r"ffn_hidden_size$|^expert_dim$|hidden_dim$", 24),
        (
            r"(hidden_size|d_model|n_embd|embed_dim|embedding_size|emb_dim|width|projection_dim)$",
            16,
        ),
        (r"(^|_)dim$|^hidden_size_per_layer_input$|word_embed_proj_dim|_hidden_dim$", 16),
        (r"max_(\w+_)?(positions?|position_embeddings|seq_len|seq_length|sequence_length)$", 48),
        (r"^(n_positions|n_ctx|max_target_positions|max_source_positions)$", 48),
        (r"^(image|img)_size$", 16),
        (r"^patch_size$", 4),
        (r"^(sliding|attention)_window$|^window_size$", 3),
    )
)

#: Settings that are made small where the widths contradict each other: repetitions and tables.
REPEATED = tuple(
    (pattern, value)
    for pattern, value in SMALL
    if value == 64 or "layers" in pattern.pattern or "experts$" in pattern.pattern
)

#: Settings that some model types leave open but cannot do without.
UNSET = dict(vocab_size=64, head_dim=4)
SPECIAL = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)


class NotBuildable(Exception):
    """No small model of a type can be made here; the message says why."""


def small_model(model_type: str) -> Any:
    """A small model of a type, on the CPU, without a head where transformers has it so."""
    from transformers import CONFIG_MAPPING

    kind = CONFIG_MAPPING[model_type]
    problems = []
    for table in (SMALL, REPEATED):
        try:
            return model_of(kind(**_settings(kind(), table)))
        # A configuration can fail with any error where settings contradict each other.
        except Exception as error:
            problems.append(f"{type(error).__name__}: {reason_of(error)}")
    raise NotBuildable(problems[0])


def _settings(default: Any, table: Any) -> dict[str, Any]:
    """What `table` makes small in a configuration and in those inside it."""
    settings: dict[str, Any] = {}
    inner = set(type(default).sub_configs or ())
    for name, value in vars(default).items():
        if name in inner and hasattr(value, "model_type"):
            settings[name] = type(value)(**_settings(value, table))
        elif value is None and name in UNSET:
            settings[name] = UNSET[name]
        elif isinstance(value, int) and not isinstance(value, bool) and value > 0:
            small = next((small for pattern, small in table if pattern.search(name)), None)
            if small is not None:
                settings[name] = min(small, value)
            elif name.endswith("token_id") and value >= 64:
                settings[name] = SPECIAL.get(name, 3)
    return settings


def model_of(config: Any) -> Any:
    """A model of a configuration: AutoModel's class, or the plainest class of its module."""
    from transformers import MODEL_MAPPING

    if type(config) in MODEL_MAPPING:
        kinds = MODEL_MAPPING[type(config)]
        kind = kinds[0] if isinstance(kinds, tuple) else kinds
    else:
        kind = _plainest_class(type(config))
    return kind._from_config(config).eval()


def _plainest_class(config_class: type) -> Any:
    from transformers import PreTrainedModel

    module = import_module(config_class.__module__.replace(".configuration_", ".modeling_"))
    kinds = [
        kind
        for kind in vars(module).values()
        if isinstance(kind, type)
        and issubclass(kind, PreTrainedModel)
        and kind.config_class is config_class
        and "forward" in vars(kind)
    ]
    if not kinds:
        raise NotBuildable("transformers has no model class for this configuration")
    return min(kinds, key=lambda kind: len(kind.__name__))
