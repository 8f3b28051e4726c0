"""Many quick values in one case: collecting and reporting a case takes longer than they do."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest


def in_one_case(
    names: str | tuple[str, ...], values: Iterable[Any], ids: Any = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test for every value, as `pytest.mark.parametrize` does, but in one case.

    The test stops at the first value that fails, and says which; one that is skipped does not keep
    the others from being tried. What a value patches is undone before the next one, which has a
    folder of its own; all other fixtures are set up once, and must not be changed.
    """
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else [*names]
    rows = [row if len(keys) > 1 else (row,) for row in values]
    assert rows, "nothing would be tried"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)
        others = [each for name, each in signature.parameters.items() if name not in keys]
        assert len(others) + len(keys) == len(signature.parameters), keys

        @functools.wraps(test, updated=())
        def run(**fixtures: Any) -> None:
            skipped, tried = None, False
            for place, row in enumerate(rows):
                given = dict(zip(keys, row, strict=True))
                try:
                    with _own(fixtures, place) as own:
                        test(**own, **given)
                    tried = True
                except pytest.skip.Exception as reason:
                    skipped = reason
                except Exception as error:
                    raise AssertionError(f"with {given}: {error}") from error
            if skipped is not None and not tried:
                raise skipped

        run.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        del run.__wrapped__  # pytest would read the names of its parameters
        run.pytestmark = [*getattr(test, "pytestmark", [])]  # type: ignore[attr-defined]
        return run

    return decorate


@contextmanager
def _own(fixtures: dict[str, Any], place: int) -> Iterator[dict[str, Any]]:
    """The fixtures of one value."""
    own = dict(fixtures)
    if "tmp_path" in own:
        own["tmp_path"] = fixtures["tmp_path"] / str(place)
        own["tmp_path"].mkdir()
    if "monkeypatch" not in own:
        yield own
        return
    with fixtures["monkeypatch"].context() as patch:
        yield own | {"monkeypatch": patch}
