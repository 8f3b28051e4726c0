"""One small adapter per model family; importing this package registers them all."""

from normlens.models import (  # noqa: F401
    albert,
    bert,
    bloom,
    deberta_v2,
    distilbert,
    gemma,
    gpt2,
    gpt_neo,
    gpt_neox,
    gptj,
    llama,
    modernbert,
    mpnet,
    olmo2,
    opt,
    phi,
    phi3,
)
from normlens.models.base import Adapter, adapt, adapter_class, register, supported_families

__all__ = ["Adapter", "adapt", "adapter_class", "register", "supported_families"]
