"""Families of other installed packages: entry points of the group `normlens.families`.

They are imported when a model type is requested that is not built in, or when all families are
listed. They replace no registered adapter: otherwise the adapter of a built-in family would depend
on what was requested before.
"""

from __future__ import annotations

import logging
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from normlens.after_fork import process_lock
from normlens.errors import reason_of

GROUP = "normlens.families"

_log = logging.getLogger(__name__)
_lock = process_lock()  # reentrant: a package may list the families while it is imported
_loaded = False


def is_available(model_type: str, adapter: type) -> bool:
    """Whether there can be a model for an adapter: transformers may be older than the adapter.

    Only families of NormLens itself are asked about; others may be of models of their own.
    """
    from transformers import CONFIG_MAPPING

    built_in = adapter.__module__.startswith("normlens.models.families.")
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
