"""Nomic BERT and its kin: post-LN with rotary positions; SwiGLU, or no gate in Jina's."""

from normlens.models.base import Adapter, register
from normlens.models.tiny import ENCODER


@register("nomic_bert", tiny=dict(ENCODER, head_dim=4))
class NomicBert(Adapter):
    layers_path = "layers"
    attention_paths = "self_attn", "self_attn.v_proj", "self_attn.o_proj"
    feed_forward_paths: tuple[str, ...] = ("mlp.up_proj", "mlp.down_proj", "mlp.gate_proj")
    norms = "post_attention_layernorm", "post_mlp_layernorm"
    masked_paths = (
        "cls.predictions.transform.dense",
        "cls.predictions.transform.layer_norm",
        "cls.predictions.decoder",
    )
    pooled_paths = "base_model.pooler.dense", "classifier"


@register("gte", tiny=dict(ENCODER, head_dim=4))
class Gte(NomicBert):
    masked_paths = "lm_head.dense", "lm_head.layer_norm", "lm_head.decoder"
    masked_activation = "gelu"


@register("jina_embeddings_v3", tiny=dict(ENCODER, head_dim=4))
class JinaEmbeddings(Gte):
    feed_forward_paths = "mlp.fc1", "mlp.fc2"
    pooled_paths = "classifier.dense", "classifier.out_proj"
