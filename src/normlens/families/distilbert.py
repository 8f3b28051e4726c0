"""DistilBERT: post-LN, half of BERT's layers."""

from normlens.models.base import Adapter, register


@register(
    "distilbert",
    tiny=dict(
        vocab_size=64, dim=16, n_layers=2, n_heads=4, hidden_dim=24, max_position_embeddings=48
    ),
)
class DistilBert(Adapter):
    layers_path = "transformer.layer"
    attention_paths = "attention", "attention.v_lin", "attention.out_lin"
    feed_forward_paths = "ffn.lin1", "ffn.lin2"
    activation_key = "activation"
    norms = "sa_layer_norm", "output_layer_norm"
    masked_paths = "vocab_transform", "vocab_layer_norm", "vocab_projector"
    pooled_paths = "pre_classifier", "classifier"
    pooled_activation = "relu"
