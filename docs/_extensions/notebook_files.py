"""Where notebooks run and what of them is kept.

A notebook that calls ``maps.to_html("soap.html")`` writes into one folder, whichever page it is on,
and the site takes viewers from there. The folder and the cache of executed notebooks belong to one
state of the package and of the installed versions, so that neither outlives what it shows.
"""

from __future__ import annotations

import hashlib
import os
import sys
from importlib import metadata
from pathlib import Path

#: Run before a notebook's first cell.
_STARTUP = """\
import os
import warnings

os.chdir({folder!r})
warnings.filterwarnings("ignore", category=DeprecationWarning)
warnings.filterwarnings("ignore", category=FutureWarning)
del os, warnings
"""
_CONFIG = """\
c = get_config()  # noqa: F821
c.InlineBackend.figure_formats = {"svg"}
c.HistoryManager.enabled = False
"""
#: Progress bars would be widgets, which a static page cannot show.
_QUIET = {"HF_HUB_DISABLE_PROGRESS_BARS": "1"}


def prepare_kernels(docs: Path, kept: Path) -> Path:
    """Make the folder of this state and have kernels start in it; returns it."""
    state = kept / _digest(docs.parent)
    files = state / "files"
    files.mkdir(parents=True, exist_ok=True)
    profile = state / "ipython" / "profile_default"
    (profile / "startup").mkdir(parents=True, exist_ok=True)
    (profile / "startup" / "00-files.py").write_text(_STARTUP.format(folder=str(files)))
    (profile / "ipython_kernel_config.py").write_text(_CONFIG)
    os.environ.update(_QUIET)
    os.environ["IPYTHONDIR"] = str(state / "ipython")
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(docs.parent / "src"), os.environ.get("PYTHONPATH")])
    )
    # The command line is tried in notebooks, too: the one of this environment.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return state


def files_of(executed: Path) -> Path:
    """The folder that notebooks of this state write into."""
    return executed.parent / "files"


def _digest(root: Path) -> str:
    """A name for the package's sources, the installed versions and how kernels start."""
    sha = hashlib.sha256((_STARTUP + _CONFIG + str(_QUIET)).encode())
    package = root / "src" / "normlens"
    for path in sorted(package.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            sha.update(path.relative_to(package).as_posix().encode())
            sha.update(path.read_bytes())
    for name in ("torch", "transformers", "numpy", "scipy", "matplotlib", "duckdb", "myst-nb"):
        try:
            sha.update(f"{name}={metadata.version(name)}".encode())
        except metadata.PackageNotFoundError:
            sha.update(f"{name}=".encode())
    return sha.hexdigest()[:16]
