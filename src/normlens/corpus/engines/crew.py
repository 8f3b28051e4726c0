"""The workers of an engine, wherever they run: hired, asked, and lost."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, TypeAlias

from normlens.corpus.engines.jobs import Call


@dataclass(frozen=True)
class Joined:
    """A worker has loaded its model and can be asked."""

    worker: int
    identity: dict[str, Any]
    by: dict[str, Any]


@dataclass(frozen=True)
class Answered:
    """A worker has answered the call with this number."""

    worker: int
    number: int
    answer: Any


@dataclass(frozen=True)
class Died:
    """A worker has ended; what it was asked is not answered any more."""

    worker: int
    reason: str
    late: int | None = None  # the sequence that took too long, where the worker was ended for it


Event: TypeAlias = Joined | Answered | Died


class Crew(ABC):
    """Workers by their numbers, which are never used again."""

    @property
    @abstractmethod
    def wanted(self) -> int:
        """How many workers there should be at the moment."""

    @abstractmethod
    def hire(self) -> int:
        """Start one more worker; it can be asked once it has joined."""

    @abstractmethod
    def ask(self, worker: int, call: Call) -> int:
        """Send a call to a worker and give its number; one that is dead shows by an event."""

    @abstractmethod
    def events(self) -> list[Event]:
        """Wait for events and give those that are there; none if for a while there were none.

        What a worker raised is raised here.
        """

    @abstractmethod
    def dismiss(self, worker: int) -> None:
        """End a worker at once, whatever it is doing; no event tells of it."""

    def abandon(self) -> None:
        """Drop the work that is going on."""
        return

    @abstractmethod
    def close(self) -> None:
        """Let all workers go."""
