"""Results files that somebody has altered: refused in one line, or what they say can be used."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crafted_files import save_crafted
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from picture_examples import classifier, processor, scene
from safetensors import safe_open
from safetensors.numpy import save_file
from test_contracts import IDS, MADE

import normlens
from normlens.errors import MapsFileError
from normlens.models.tiny import tiny_model
from normlens.results import exports, files


def sampled(*_: Any) -> Any:
    """Maps with everything that one stack's can have, of a model whose layers differ."""
    options = {"nonlinearity": "shapley", "samples": 2, "heads": True, "statistics": True}
    return normlens.load(tiny_model("gemma2")).maps(input_ids=IDS, **options)


def seen(*_: Any) -> normlens.Lens:
    return normlens.load(classifier(), processor())


#: A result of every kind, and of every optional part.
RESULTS = MADE | {
    "Maps that were sampled": sampled,
    "Maps of two lengths": lambda *_: sampled().choose(layers=1).without_special_tokens(),
    "Maps of a picture": lambda *_: seen().maps(scene()),
    "Maps, rolled out": lambda *_: sampled().choose(scopes="ATTN-W").rollout("ATTN-W"),
    "Explanation of a picture": lambda *_: seen().explain(scene(), target=1),
}
DEEP = "[" * 100_000 + "]" * 100_000
OPTIONAL = ("same_token", "head_flow", "picture")
JSON = st.recursive(
    st.sampled_from([None, True, -1, 0, 99, 10**400, 0.5, float("nan"), float("inf"), "", "a"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.just("model"), inner),
    max_leaves=5,
)
slow_examples = settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


class Saved:
    """A result in a file, taken apart."""

    def __init__(self, result: Any, folder: Path):
        self.result, self.path = result, result.save(folder / "it.safetensors")
        with safe_open(self.path, framework="numpy") as file:
            self.header = dict(file.metadata())
            self.tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        self.key = self.header["format"].removeprefix("normlens-")
        self.altered = folder / "altered.safetensors"

    def meta(self) -> Any:
        return json.loads(self.header[self.key])

    def write(self, meta: Any = None, tensors: Any = None, **header: str) -> None:
        """Write it anew with some parts changed, and checksums that fit."""
        said = self.header if meta is None else {**self.header, self.key: json.dumps(meta)}
        save_crafted(self.tensors if tensors is None else tensors, self.altered, said | header)

    def refused(self, words: str = "") -> None:
        with pytest.raises(MapsFileError) as raised:
            normlens.open(self.altered)
        line = str(raised.value)
        assert words in line
        assert "\n" not in line
        assert len(line) < 600

    def refused_or_usable(self) -> None:
        try:
            found = normlens.open(self.altered)
        except MapsFileError:
            self.refused()
            return
        assert repr(found)
        for ending in (".csv", ".json", ".html"):
            exports.write(found, self.altered.with_suffix(ending), overwrite=True)
        again = found.save(self.altered.with_name("again.safetensors"))
        assert normlens.open(again) == found


@pytest.fixture(scope="module", params=RESULTS)
def saved(request: Any, minilm: Any, smollm2: Any, tmp_path_factory: Any) -> Saved:
    result = RESULTS[request.param](minilm, smollm2)
    return Saved(result, tmp_path_factory.mktemp("results"))


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where values stand in a header: every field, and the first two of each list."""
    items = value.items() if isinstance(value, dict) else []
    if isinstance(value, list):
        items = enumerate(value[:2])
    for name, inner in items:
        yield (*above, name)
        if "provenance" not in above:
            yield from places(inner, (*above, name))


def changed(meta: Any, place: tuple[Any, ...], value: Any) -> Any:
    """The header with another value at a place."""
    inner = meta
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    return meta


def test_it_is_written_as_it_was(saved: Saved) -> None:
    saved.write(saved.meta())
    assert normlens.open(saved.altered) == saved.result
    assert normlens.open(saved.altered, mapped=True) == saved.result


@slow_examples
@given(data=st.data())
def test_any_value_at_any_place_of_the_header(saved: Saved, data: Any) -> None:
    place = data.draw(st.sampled_from([*places(saved.meta())]))
    saved.write(changed(saved.meta(), place, data.draw(JSON)))
    saved.refused_or_usable()


def test_fields_are_all_needed_and_no_other_is_taken(saved: Saved) -> None:
    free = ("provenance", "versions", "coverage", "remainder")
    for place in places(saved.meta()):
        if isinstance(place[-1], str) and not set(free) & set(place[:-1]):
            meta = saved.meta()
            inner = meta
            for name in place[:-1]:
                inner = inner[name]
            del inner[place[-1]]
            saved.write(meta)
            saved.refused(repr(place[-1]))
            saved.write(changed(saved.meta(), (*place[:-1], "surprise"), 1))
            saved.refused()


def test_headers_that_are_none_and_other_versions(saved: Saved) -> None:
    for said in ("", "{", "[]", "null", "3", '"a"', "{}", DEEP, "\ud7ff"):
        saved.write(**{saved.key: said})
        saved.refused("damaged")
    for version in ("99", "1", "04", "one", "9" * 10_000):
        saved.write(version=version)
        saved.refused("make it again")


def test_every_array_is_needed_in_its_own_form_and_no_other_is_taken(saved: Saved) -> None:
    for key, array in saved.tensors.items():
        forms = [array.astype(np.complex64), array[None], np.concatenate([array, array])]
        if array.dtype != np.int64:
            forms.append(array.astype(np.int64))
        for other in (None, array.reshape(-1)[:0], *forms):
            tensors = {name: each for name, each in saved.tensors.items() if name != key}
            if other is not None:
                tensors[key] = np.ascontiguousarray(other)
            saved.write(tensors=tensors)
            # A result may have no such array, and a picture may be of another size.
            saved.refused_or_usable() if key.endswith(OPTIONAL) else saved.refused()
    for name in ("surprise", "arrays/NO-N", "encoder/encoder/x", "9/nodes", "²/nodes"):
        saved.write(tensors={**saved.tensors, name: next(iter(saved.tensors.values()))})
        saved.refused()


def test_a_file_that_is_cut_off_or_too_long(saved: Saved) -> None:
    content = saved.path.read_bytes()
    for share in (0, 0.001, 0.1, 0.5, 0.999, 2):
        saved.altered.write_bytes((content + b"more")[: int(share * len(content))])
        saved.refused()


@pytest.mark.parametrize("finer", [1, pytest.param(9, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mapped", [False, True])
def test_no_changed_byte_changes_a_number_or_a_label(
    mapped: bool, finer: int, saved: Saved
) -> None:
    content, refused = saved.path.read_bytes(), 0
    stride = max(1, len(content) // (60 * finer))
    for place in range(0, len(content), stride):
        flipped = content[place] ^ (1 << place // stride % 8)
        saved.altered.write_bytes(content[:place] + bytes([flipped]) + content[place + 1 :])
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a byte in the name of the checksums' field
                found = normlens.open(saved.altered, mapped=mapped)
            assert found == saved.result, place
        except MapsFileError:
            refused += 1
    assert refused > 0.9 * len(content) / stride


def test_a_file_without_checksums_is_opened_with_a_warning(saved: Saved) -> None:
    header = {key: said for key, said in saved.header.items() if key != files.KEY}
    save_file(saved.tensors, saved.altered, metadata=header)
    with pytest.warns(UserWarning, match="no checksums"):
        assert normlens.open(saved.altered) == saved.result
