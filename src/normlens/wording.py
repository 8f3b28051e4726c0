"""Small pieces of English sentences."""

from __future__ import annotations

from collections.abc import Sequence


def listed(items: Sequence[str], word: str = "and") -> str:
    """Join items as English does: ``a``, ``a and b``, ``a, b and c``; empty for no items."""
    return f" {word} ".join(filter(None, [", ".join(items[:-1]), *items[-1:]]))


def counted(count: int, noun: str) -> str:
    """A number and its noun: ``1 shard``, ``2 shards``."""
    return f"{count} {noun}" + ("" if count == 1 else "s")


def quoted(text: str | Sequence[str] | None) -> list[str]:
    """A text, or each text of a pair, on one line in quotation marks; empty for no text."""
    parts = [text] if isinstance(text, str) else list(text or ())
    return [f"“{' '.join(part.split())}”" for part in parts]
