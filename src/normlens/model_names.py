"""Names of models: which mean folders, and what results call the models in them."""

from __future__ import annotations

from pathlib import Path

#: How the hub's cache calls the folder of a model: models--someone--name/snapshots/COMMIT
_CACHED = "models--"


def is_local(name: str) -> bool:
    """Whether a name means a local folder rather than a model on the hub."""
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        return True
    try:
        return Path(name).exists()
    except OSError:  # longer than a file's name can be
        return False


def shown_name(name: str) -> str:
    """What results call a model: the last part of a folder's path, any other name as it is.

    Results are passed on, and where a folder lies is nobody else's business.
    """
    if not is_local(name):
        return name
    path = Path(name).expanduser()
    for part in path.parts:
        if part.startswith(_CACHED):
            return part.removeprefix(_CACHED).replace("--", "/")
    # "." and ".." have a name only once they are resolved.
    last = path.name if path.name not in ("", "..") else path.absolute().resolve().name
    return last or "model"
