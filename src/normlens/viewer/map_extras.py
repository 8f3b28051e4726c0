"""What some maps have beside their numbers: a picture cut into patches, the routing of experts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from normlens.viewer.container import Blobs

if TYPE_CHECKING:
    from normlens.results.patches import PatchGrid
    from normlens.results.routing import Routing


def grid_field(grid: PatchGrid | None, blobs: Blobs) -> dict[str, Any] | None:
    """Which tokens are patches, and the picture as bytes, which needs no library for images."""
    if grid is None:
        return None
    picture = None
    if grid.picture is not None:
        height, width, _ = grid.picture.shape
        pixels = blobs.add(grid.picture, "bytes")
        picture = {"height": height, "width": width, "pixels": pixels}
    return {
        "rows": grid.rows,
        "columns": grid.columns,
        "first": grid.first,
        "picture": picture,
    }


def routing_field(routing: Routing | None, blobs: Blobs) -> dict[str, Any] | None:
    """The experts that each token used, and their weights, in the layers that have experts."""
    if routing is None:
        return None
    return {
        "layers": [int(layer) for layer in routing.layers],
        "count": int(routing.count),
        "places": int(routing.experts.shape[-1]),
        "experts": blobs.add_floats(routing.experts),  # numbers that float32 holds exactly
        "weights": blobs.add_floats(routing.weights),
        "shared": None if routing.shared is None else blobs.add_floats(routing.shared),
    }
