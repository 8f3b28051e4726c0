"""Explanations on disk: what is written is read, and nothing else is."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from crafted_files import save_crafted
from heads import headed
from one_case import in_one_case
from safetensors import safe_open

import normlens
from normlens.errors import InputError, MapsFileError

#: What a header holds: every field that is no array.
ARRAYS = {"nodes", "components", "heads", "head_flow", "cross_heads"}
FIELDS = sorted({each.name for each in fields(normlens.Explanation)} - ARRAYS)

IDS = [5, 17, 31, 8, 44]


@pytest.fixture(scope="module")
def lens():
    return normlens.load(headed("gpt2", "CausalLM", torch.float32), tokenizer=False)


@pytest.fixture(scope="module")
def why(lens):
    return lens.explain(input_ids=IDS, target=3, contrast=7, heads=True, scopes=["ATTN", "FF"])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "why.safetensors"


def assert_identical(one, other):
    assert one == other
    assert one.provenance == other.provenance
    for field in fields(other):
        kind = type(getattr(other, field.name))
        assert type(getattr(one, field.name)) is kind, field.name
    for name in ("nodes", "components", "heads"):
        assert getattr(one, name).dtype == getattr(other, name).dtype


# Round trips --------------------------------------------------------------------------------------


def test_round_trip_of_everything(why, path):
    assert why.head_flow is not None
    assert len(why.flows) == 3
    assert why.save(path) == path
    again = normlens.open(path)
    assert_identical(again, why)
    assert list(again.flows) == list(why.flows)
    assert again.bias.equals(why.bias)
    assert_identical(normlens.Explanation.load(path), why)


def test_round_trip_in_float64_without_flow(path):
    lens = normlens.load(headed("bert", "SequenceClassification"), tokenizer=False)
    why = lens.explain(input_ids=IDS, target=1, flow=False)
    assert not why.flows
    why.save(path)
    assert_identical(normlens.open(path), why)


def test_round_trip_of_a_direction(lens, path):
    why = lens.explain(input_ids=IDS, direction=np.arange(16.0), layer=0, position=2)
    assert why.layer == 0
    why.save(path)
    assert_identical(normlens.open(path), why)


def test_round_trip_of_texts_and_words(minilm, path):
    direction = np.ones(384)
    for text in ("unaffably 他说 café", ("a pair", "of texts")):
        why = minilm.explain(text, direction=direction, position=1)
        for each in (why, why.words()):
            each.save(path, overwrite=True)
            again = normlens.open(path)
            assert_identical(again, each)
            assert again.text == text


def test_round_trip_of_each_next_token(lens, path):
    several = lens.explain(input_ids=IDS, position="all", scopes="ATTN")
    assert several.save(path) == path
    again = normlens.open(path)
    assert isinstance(again, normlens.Explanations)
    assert len(again) == len(IDS) - 1
    for one, other in zip(again, several, strict=True):
        assert_identical(one, other)
    assert normlens.Explanations.load(path) == several


def test_what_explanations_share_is_written_once(lens, path):
    lens.explain(input_ids=IDS, position="all").save(path)
    with safe_open(path, framework="numpy") as file:
        listed = json.loads(file.metadata()["explanations"])["explanations"]
    assert listed["shared"]["token_ids"] == IDS
    assert not any("token_ids" in own for own in listed["each"])


def test_explanations_of_two_texts(lens, why, path):
    other = lens.explain(input_ids=IDS[:3], target=3)
    both = normlens.Explanations([why, other])
    both.save(path)
    assert normlens.open(path) == both


def test_the_file_is_plain_safetensors(why, path):
    why.save(path)
    with safe_open(path, framework="numpy") as file:
        assert file.metadata()["format"] == "normlens-explanation"
        np.testing.assert_array_equal(file.get_tensor("nodes"), why.nodes)
        np.testing.assert_array_equal(file.get_tensor("flows/"), why.flow)


# Kinds --------------------------------------------------------------------------------------------


def test_a_file_of_another_kind_is_named(lens, why, path, tmp_path):
    why.save(path)
    for kind in (normlens.Maps, normlens.Explanations):
        with pytest.raises(MapsFileError, match=f"holds Explanation and not {kind.__name__}"):
            kind.load(path)
    maps = lens.maps(input_ids=IDS).save(tmp_path / "maps.safetensors")
    with pytest.raises(MapsFileError, match="holds Maps and not Explanation"):
        normlens.Explanation.load(maps)


# Damaged and crafted files ------------------------------------------------------------------------


def rewrite(result, path, change) -> None:
    """Save, let `change` alter tensors and header, and write them back."""
    result.save(path, overwrite=True)
    with safe_open(path, framework="numpy") as file:
        header = dict(file.metadata())
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    name = type(result).__name__.lower()
    meta = json.loads(header[name])
    change(tensors, header, meta)
    if header.get(name) not in (None, "{"):
        header[name] = json.dumps(meta)
    save_crafted(tensors, path, metadata=header)


def refused(path) -> str:
    with pytest.raises(MapsFileError, match="damaged") as raised:
        normlens.open(path)
    return str(raised.value)


@in_one_case(
    "change",
    [
        lambda tensors, header, meta: tensors.pop("nodes"),
        lambda tensors, header, meta: tensors.pop("components"),
        lambda tensors, header, meta: tensors.pop("flows/ATTN-N"),
        lambda tensors, header, meta: tensors.update(nodes=tensors["nodes"][0]),
        lambda tensors, header, meta: tensors.update(nodes=tensors["nodes"][:1]),
        lambda tensors, header, meta: tensors.update(nodes=tensors["nodes"][:, :2]),
        lambda tensors, header, meta: tensors.update(nodes=tensors["nodes"] * np.nan),
        lambda tensors, header, meta: tensors.update(nodes=tensors["nodes"].astype(np.int64)),
        lambda tensors, header, meta: tensors.update(nodes=tensors["nodes"] + 1),
        lambda tensors, header, meta: tensors.update(heads=tensors["heads"][:, :0]),
        lambda tensors, header, meta: tensors.update({"flows/": tensors["flows/"][:, :2]}),
        lambda tensors, header, meta: tensors.update(head_flow=tensors["flows/"]),
        lambda tensors, header, meta: tensors.update({"flows/LN-N": tensors["flows/"]}),
        lambda tensors, header, meta: tensors.update({"0/nodes": tensors["nodes"]}),
        lambda tensors, header, meta: tensors.update(surprise=tensors["nodes"]),
        lambda tensors, header, meta: header.update(explanation="{"),
        lambda tensors, header, meta: header.pop("explanation"),
        lambda tensors, header, meta: header.pop("version"),
        lambda tensors, header, meta: header.update(format="normlens-explanations"),
        lambda tensors, header, meta: meta.update(surprise=1),
        lambda tensors, header, meta: meta.update(raw_tokens=["one"]),
        lambda tensors, header, meta: meta.update(token_ids=[1]),
        lambda tensors, header, meta: meta.update(component_names=["ATTN"]),
        lambda tensors, header, meta: meta.update(component_names=["ATTN", "ATTN"]),
        lambda tensors, header, meta: meta.update(flows=["", "nonsense"]),
        lambda tensors, header, meta: meta.update(value=meta["value"] + 1),
        lambda tensors, header, meta: meta.update(position=99),
        lambda tensors, header, meta: meta.update(layer=99),
        lambda tensors, header, meta: meta.update(probability=1.5),
        lambda tensors, header, meta: meta["biases"].append([99, "LN", 0.0]),
        lambda tensors, header, meta: meta["biases"].append([0, "LN"]),
        lambda tensors, header, meta: meta["biases"].append(["tail", "LN", 0.0]),
        lambda tensors, header, meta: meta["provenance"].update(note=3),
    ],
)
def test_a_damaged_file(change, why, path):
    rewrite(why, path, lambda *_: None)
    assert normlens.open(path) == why  # it is the change that is refused
    rewrite(why, path, change)
    refused(path)


#: Values of every type that JSON knows.
VALUES = [
    None,
    True,
    -1,
    0.5,
    float("nan"),
    float("inf"),
    10**400,
    "text",
    [],
    ["a"],
    [0, 1],
    [None],
    [[0, "a", 0.5]],
    {},
    {"model": 3},
    {"versions": 3},
]


@in_one_case("value", VALUES, ids=repr)
@in_one_case("field", FIELDS)
def test_a_field_of_another_type(value, field, why, path):
    """It is refused in one line, or it can be shown, merged and saved."""

    def change(tensors, header, meta):
        meta[field] = value

    rewrite(why, path, change)
    try:
        again = normlens.open(path)
    except MapsFileError:
        refused(path)
        return
    assert again.question
    assert repr(again)
    assert len(again.top()) == len(IDS)
    assert again.bias.sum() == pytest.approx(again.remainder)
    again.save(path, overwrite=True)
    assert normlens.open(path) == again


@in_one_case("name", FIELDS)
def test_a_missing_field(name, why, path):
    def change(tensors, header, meta):
        meta.pop(name)

    rewrite(why, path, change)
    assert name in refused(path)


SEVERAL = "explanations/"


@in_one_case("key", ["9/nodes", "x/nodes", "nodes", "²/nodes", "-1/nodes"])
def test_an_array_of_no_explanation(key, lens, path):
    several = lens.explain(input_ids=IDS, position="all", flow=False)
    more = {SEVERAL + key: several[0].nodes}
    rewrite(several, path, lambda tensors, *_: tensors.update(more))
    assert "is no array of" in refused(path)


@in_one_case(
    "change",
    [
        lambda listed: listed.pop("shared"),
        lambda listed: listed.update(surprise=1),
        lambda listed: listed.update(each=[]),
        lambda listed: listed.update(each={}),
        lambda listed: listed.update(each=[1]),
        lambda listed: listed.update(shared=[1]),
        lambda listed: listed.update(each=listed["each"] * 2),
        lambda listed: listed["shared"].update(surprise=1),
        lambda listed: listed["each"][0].update(surprise=1),
    ],
)
def test_a_damaged_list_of_explanations(change, lens, path):
    several = lens.explain(input_ids=IDS, position="all", flow=False)
    rewrite(several, path, lambda *_: None)
    assert normlens.open(path) == several
    rewrite(several, path, lambda tensors, header, meta: change(meta["explanations"]))
    refused(path)


@in_one_case("share", [0.001, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file(share, why, path):
    why.save(path, overwrite=True)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    refused(path)


def test_another_version(why, path):
    rewrite(why, path, lambda tensors, header, meta: header.update(version="99"))
    with pytest.raises(MapsFileError, match="make it again"):
        normlens.open(path)


def test_numbers_that_lose_their_sum_are_refused_and_rounding_is_not(why, path):
    rounded = replace(why, nodes=why.nodes.astype(np.float64) * (1 + 1e-7))
    rounded.save(path)
    assert normlens.open(path) == rounded
    with pytest.raises(InputError, match="sum to"):
        replace(why, nodes=why.nodes * 1.01).save(path, overwrite=True)
    rewrite(why, path, lambda tensors, *_: tensors.update(nodes=tensors["nodes"] * 1.01))
    assert "sum to" in refused(path)
