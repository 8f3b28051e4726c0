"""An experiment of a paper: what it reads, and the function that answers its question."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from normlens.papers.settings import Settings
from normlens.reports import base
from normlens.reports.base import Result


@dataclass(frozen=True, kw_only=True)
class Evidence(base.Evidence):
    """The data an experiment reads, with the settings of the reproduction."""

    settings: Settings


@dataclass(frozen=True, kw_only=True)
class Experiment(base.Experiment):
    """One experiment of a paper: its question, and the function that answers it.

    `needs` says what it looks at: "masked" or "plain" runs, or the "model" alone. `work` gives
    None where it does not apply (a model without that component, data without entities); `absent`
    says why.
    """

    needs: str
    work: Callable[[Evidence], Result | None]
