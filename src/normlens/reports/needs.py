"""What reports need beside the core, to be asked for before anything long starts."""

from __future__ import annotations

from importlib.util import find_spec

from normlens.errors import MissingDependencyError
from normlens.wording import listed

#: Packages that read a run's tables, draw figures and write a page.
PACKAGES = ("duckdb", "matplotlib", "jinja2")
#: What can be done instead where the page may wait.
NO_PAGE = ", or leave the page out with --no-page (page=False)"


def check_packages(instead: str = "") -> None:
    """Raise where a package is missing; `instead` names what can be done without it."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise MissingDependencyError(
            f"the report needs {listed(missing)}; run: pip install 'normlens[reproduce]'{instead}"
        )
