"""Named data sets, with a stand-in for the datasets library."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from normlens.corpus import Entity, Record, open_data
from normlens.errors import InputError, MissingDependencyError


class Rows(list[Any]):
    """What `load_dataset` returns: rows with features and a fingerprint."""

    features: Any = None
    _fingerprint = "0123456789abcdef"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let `load_dataset` return these rows; the calls it got are in `calls`."""
    module: Any = ModuleType("datasets")
    module.calls = []

    def serve(rows: Any) -> Any:
        def load_dataset(*args: Any, **options: Any) -> Any:
            module.calls.append((args, options))
            if isinstance(rows, Exception):
                raise rows
            return rows

        module.load_dataset = load_dataset
        return module

    monkeypatch.setitem(sys.modules, "datasets", module)
    return serve


def test_sst2(hub: Any) -> None:
    module = hub(Rows([{"sentence": "good . ", "label": 1}, {"sentence": "bad", "label": 0}]))
    data = open_data("sst2")
    assert module.calls == [
        (("stanfordnlp/sst2", None), {"split": "validation", "streaming": False})
    ]
    assert list(data) == [Record("sst2:0", text="good ."), Record("sst2:1", text="bad")]
    assert data.name == "sst2"
    assert data.fingerprint == "0123456789abcdef"
    limited = open_data("sst2", limit=1)
    assert len(list(limited)) == 1
    assert limited.fingerprint != data.fingerprint


def test_conll2003(hub: Any) -> None:
    words = ["EU", "rejects", "German", "Peter", "Blackburn"]
    rows = Rows(
        [
            {"tokens": words, "ner_tags": [3, 0, 7, 1, 2]},
            {"tokens": ["Korea", "Korea"], "ner_tags": [5, 5]},
        ]
    )
    labels = ["O"] + [f"{b}-{label}" for label in ("PER", "ORG", "LOC", "MISC") for b in "BI"]
    rows.features = {"ner_tags": SimpleNamespace(feature=SimpleNamespace(names=labels))}
    module = hub(rows)
    first, second = open_data("conll2003")
    [(args, options)] = module.calls
    assert args == ("eriktks/conll2003", None)
    assert options == {
        "split": "validation",
        "streaming": False,
        "revision": "refs/convert/parquet",
    }
    assert first.entities == (Entity(0, 1, "ORG"), Entity(2, 3, "MISC"), Entity(3, 5, "PER"))
    assert first.words == tuple(words)
    assert second.entities == (Entity(0, 1, "LOC"), Entity(1, 2, "LOC"))


def test_wikitext(hub: Any) -> None:
    lines = ["", " = Title = \n", "", " one \n", " = = Section = = \n", " two \n", " three \n"]
    module = hub(Rows([{"text": line} for line in lines]))
    between = "\n= = Section = =\n"
    assert list(open_data("wikitext")) == [
        Record("wikitext:0", text=("one", "two"), between=between)
    ]
    assert module.calls == [
        (
            ("Salesforce/wikitext", "wikitext-2-raw-v1"),
            {"split": "validation", "streaming": False},
        )
    ]


@pytest.mark.parametrize(
    ("name", "local"),
    [
        ("sst2", "--data sst2:path/dev.tsv"),
        ("conll2003", "--data conll2003:path/eng.testa"),
        ("wikitext", "--data wikitext:path/wiki.valid.raw"),
    ],
)
def test_without_hub_or_package_the_local_form_is_named(
    name: str, local: str, hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub(ConnectionError("Couldn't reach\nthe Hub"))
    with pytest.raises(InputError, match="Couldn't reach the Hub") as caught:
        open_data(name)
    assert str(caught.value).endswith(local)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingDependencyError, match="pip install 'normlens\\[data\\]'") as missing:
        open_data(name)
    assert local in str(missing.value)


def test_options_do_not_apply(hub: Any) -> None:
    hub(Rows())
    with pytest.raises(InputError, match="sst2 is read as published"):
        open_data("sst2", column="sentence")


def test_an_empty_split_is_an_error(hub: Any) -> None:
    hub(Rows())
    with pytest.raises(InputError, match="'sst2' holds no sequence"):
        open_data("sst2")
