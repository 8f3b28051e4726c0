"""Model families: one adapter each, in the folder `families`."""

from normlens import families  # noqa: F401  (registers every family in its folder)
from normlens.models.base import Adapter, adapt, adapter_class, register, supported_families

__all__ = ["Adapter", "adapt", "adapter_class", "register", "supported_families"]
