"""How much a visitor may ask for, and how much is kept."""

from __future__ import annotations

from dataclasses import dataclass

# A character outside the basic plane takes two escapes of six bytes in JSON.
_BYTES_PER_CHARACTER = 12
_BYTES_AROUND = 4096


@dataclass(frozen=True)
class Limits:
    """Bounds on what one request, the queue and the memory may hold."""

    text_characters: int = 10_000  # of a text, of its pair, and of a target text
    tokens: int = 512
    connections: int = 256  # open at once; fewer where the system allows fewer
    request_seconds: float = 20.0  # for the whole of a request to arrive
    stall_seconds: float = 20.0  # in which a client must take some of its answer
    queue: int = 32  # analyses that wait; one more is worked on
    models: int = 2  # models in memory at once
    kept: int = 256  # finished analyses that can be asked for
    kept_bytes: int = 256 << 20  # their results, together
    kept_seconds: float = 30 * 60.0

    @property
    def body_bytes(self) -> int:
        """The largest body; three texts of the greatest length fit, however written."""
        return 3 * _BYTES_PER_CHARACTER * self.text_characters + _BYTES_AROUND
