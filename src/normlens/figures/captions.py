"""Words about maps: headings, notes and numbers as they are written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from normlens.scopes import components_of
from normlens.wording import quoted

if TYPE_CHECKING:
    from normlens.maps import Maps


def additions(names: Sequence[str]) -> dict[str, str]:
    """What each panel adds to the panel before it."""
    words = {"ATTN-W": "weights", "ATTNRES-W": "½ + ½ identity", "ATTN-N": "weights × values"}
    before: list[str] = []
    added: dict[str, str] = {}
    for scope in names:
        parts = components_of(scope)
        new = parts[len(before) :] if before else parts[-1:]
        added[scope] = words.get(scope) or "+ " + " ".join(new)
        if scope.endswith("-N"):
            before = parts
    return added


def unit(scope: str, normalise: str) -> str:
    """What a scope's colours measure."""
    if normalise != "none":
        return {
            "source": "share of each source's column",
            "target": "share of each target's row",
        }[normalise]
    return "norm of the part ‖F_i(x_j)‖" if scope.endswith("-N") else "attention weight"


def measured(names: Sequence[str], normalise: str) -> str:
    """What the colours measure, and in which panels."""
    kinds = {unit(scope, normalise): scope[-1] for scope in names}
    if len(kinds) == 1:
        return next(iter(kinds))
    return ", ".join(f"{unit} (-{letter})" for unit, letter in kinds.items())


def model_name(maps: Maps) -> str:
    return str(maps.provenance.get("model", "model"))


def model_and(maps: Maps, what: str) -> str:
    """A heading: the model, what is shown of it, and whose contributions, if not the layer's."""
    return ", ".join(filter(None, [model_name(maps), what, maps.origin_in_words]))


def text_lines(maps: Maps) -> list[str]:
    """The text in quotation marks, as one line, or none."""
    return [" ".join(quoted(maps.text))] if maps.text is not None else []


def provenance(maps: Maps) -> str:
    """How the numbers were made, in one line."""
    known = maps.provenance
    measured = any(scope.endswith("-N") for scope in maps.scopes)  # weights have no parts
    words = [f"completeness {maps.completeness:.1e}" if measured else "completeness not measured"]
    if "dtype" in known:
        own, used = known["dtype"], known.get("compute_dtype", known["dtype"])
        words.append(str(own) if own == used else f"{own} (maps in {used})")
    if "nonlinearity" in known:
        words.append(f"rule {known['nonlinearity']}")
    if "normlens" in known.get("versions", {}):
        words.append(f"normlens {known['versions']['normlens']}")
    return " · ".join(words)


def number(value: float) -> str:
    return f"{value:.2g}" if value < 100 else f"{value:.0f}"


def tick(value: float, _position: int) -> str:
    short = f"{value:.5g}" if abs(value) < 1e5 else f"{value:.2g}".replace("e+0", "e")
    return short.replace("-", "−")


def signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")


def cut_label(token: str, longest: int) -> str:
    return token if len(token) <= longest else token[: max(1, longest - 1)] + "…"
