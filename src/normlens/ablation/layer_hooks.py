"""Reading and replacing vectors at places of chosen layers while the model runs.

Blocks are counted as they are called, because a family may run one block several times (ALBERT). A
block before a given layer can be passed by: it then returns what it returned before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from normlens.ablation.places import INPUT, OUTPUT, Place
from normlens.errors import UnsupportedModelError
from normlens.models.base import Adapter
from normlens.trace.locking import Change, Hooks, other_forwards

#: Called with the vectors at a place (b, i, d); returns others to put there, or None.
Visitor = Callable[[Tensor], Tensor | None]


class LayerHooks:
    """Visitors at places of a model's layers, for the calls of one thread."""

    def __init__(self, adapter: Adapter):
        self._adapter = adapter
        self._blocks: Sequence[nn.Module] = list(adapter.blocks())
        self._visitors: dict[tuple[nn.Module, str], dict[int, list[Visitor]]] = {}
        self._expected: dict[int, set[tuple[nn.Module, str]]] = {}
        self._keeping: dict[int, dict[int, Any]] = {}
        self._seen: Counter[tuple[nn.Module, str]] = Counter()
        self._shape: Any = None  # (b, i, d) of the layer that runs
        self._layer = -1

    def visit(self, layer: int, place: Place, visitor: Visitor) -> None:
        """Have a visitor called whenever this layer's vectors are at this place."""
        key = (place.module or self._blocks[layer], place.event)
        self._visitors.setdefault(key, {}).setdefault(layer, []).append(visitor)
        self._expected.setdefault(layer, set()).add(key)

    def keep(self, layer: int, kept: dict[int, Any]) -> None:
        """Have a copy of what this layer's block returns kept under the layer's number."""
        self._keeping[layer] = kept

    @contextmanager
    def on(self, kept: Mapping[int, Any] | None = None, skip: int = -1) -> Iterator[None]:
        """Watch the model's calls; pass the layers up to `skip` by, which return `kept[skip]`.

        Everything is taken off again on every way out. One call of the model is expected.
        """
        unique = list(dict.fromkeys(self._blocks))
        self._layer = -1
        changes: dict[nn.Module, Change] = {}
        if kept is not None and skip >= 0:
            changes = dict.fromkeys(unique, self._passing_by(kept[skip], skip))
        with Hooks() as hooks, other_forwards(changes):
            for block in unique:
                hooks.before(block, self._begin)
            for (module, event), visitors in self._visitors.items():
                if event == INPUT:
                    hooks.before(module, self._reader(visitors))
                else:
                    hooks.behind(module, self._writer(visitors))
            for block in unique:
                hooks.behind(block, self._end)
            yield
        if self._layer + 1 != len(self._blocks):
            raise UnsupportedModelError(
                f"the model ran {self._layer + 1} blocks where its adapter lists "
                f"{len(self._blocks)}"
            )

    def _passing_by(self, kept: Any, skip: int) -> Change:
        def change(forward: Callable[..., Any]) -> Callable[..., Any]:
            def pass_by(*args: Any, **kwargs: Any) -> Any:
                return copied(kept) if self._layer <= skip else forward(*args, **kwargs)

            return pass_by

        return change

    def _begin(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._layer += 1
        self._seen.clear()
        self._shape = (args[0] if args else kwargs["hidden_states"]).shape

    def _end(self, _: nn.Module, __: Any, ___: Any, output: Any) -> None:
        if self._layer in self._keeping:
            self._keeping[self._layer][self._layer] = without_extras(output)
        for key in self._expected.get(self._layer, ()):
            if self._seen[key] != 1:
                raise UnsupportedModelError(
                    f"{self._adapter.name_of(key[0])} ran {self._seen[key]} times in layer "
                    f"{self._layer}, and an ablation needs it to run once"
                )

    def _reader(self, visitors: Mapping[int, list[Visitor]]) -> Callable[..., Any]:
        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            name = None if args else _vector_name(kwargs)
            given = args[0] if name is None else kwargs[name]
            changed = self._called(module, INPUT, visitors, given)
            if changed is None:
                return None
            if name is None:
                return (changed, *args[1:]), kwargs
            return args, {**kwargs, name: changed}

        return before

    def _writer(self, visitors: Mapping[int, list[Visitor]]) -> Callable[..., Any]:
        def after(module: nn.Module, _: Any, __: Any, output: Any) -> Any:
            changed = self._called(module, OUTPUT, visitors, first(output))
            return None if changed is None else with_first(output, changed)

        return after

    def _called(
        self, module: nn.Module, event: str, visitors: Mapping[int, list[Visitor]], given: Tensor
    ) -> Tensor | None:
        if self._layer not in visitors:
            return None
        self._seen[module, event] += 1
        changed: Tensor | None = None
        for visitor in visitors[self._layer]:
            now = given if changed is None else changed
            new = visitor(now.reshape(self._shape))
            changed = changed if new is None else new.reshape(given.shape)
        return changed


def _vector_name(kwargs: Mapping[str, Any]) -> str:
    return "hidden_states" if "hidden_states" in kwargs else next(iter(kwargs))


def first(output: Any) -> Tensor:
    """A module's vectors: alone in some families, first in a tuple in others."""
    return output[0] if isinstance(output, (tuple, list)) else output


def with_first(output: Any, vectors: Tensor) -> Any:
    """What a module returned, with other vectors."""
    if isinstance(output, (tuple, list)):
        return type(output)([vectors, *output[1:]])
    return vectors


def copied(output: Any) -> Any:
    """What a module returned, with a copy of its vectors: the model may write into them."""
    return with_first(output, first(output).clone())


def without_extras(output: Any) -> Any:
    """What a module returned, with a copy of its vectors and no other tensors."""
    if not isinstance(output, (tuple, list)):
        return output.clone()
    others = [None if isinstance(item, Tensor) else item for item in output[1:]]
    return type(output)([output[0].clone(), *others])
