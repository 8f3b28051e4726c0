"""What reports need beside the core, to be asked for before anything long starts."""

from __future__ import annotations

from normlens.errors import REPORT, check_installed

#: What can be done instead where the page may wait.
NO_PAGE = ", or leave the page out with --no-page (page=False)"


def check_packages(instead: str = "", extra: str = "reproduce") -> None:
    """Raise where a package is missing; `instead` names what can be done without it.

    `extra` is the one to install, which may bring more than the report needs.
    """
    check_installed(REPORT, extra=extra, instead=instead)
