"""Pickles of plain data are read; everything else is refused before anything runs."""

from __future__ import annotations

import builtins
import operator
import os
import pickle
import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from normlens.corpus import open_data
from normlens.corpus.data import unpickle
from normlens.errors import InputError

TOKENS = ["[CLS]", "a", "##b", "[SEP]"]


def tokens_of(folder: Path, content: bytes) -> Any:
    path = folder / "wiki.pickle"
    path.write_bytes(content)
    [record] = open_data(path)
    return list(record.tokens or ())


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    "tokens",
    [
        TOKENS,
        tuple(TOKENS),
        np.array(TOKENS),
        np.array(TOKENS).astype(">U8"),
        np.array(TOKENS, dtype=object),
        list(np.array(TOKENS)),
    ],
    ids=["list", "tuple", "array", "big-endian", "objects", "scalars"],
)
def test_plain_data_and_arrays(tokens: Any, protocol: int, tmp_path: Path) -> None:
    item = {
        "tokens": tokens,
        "attns": np.ones((2, 3, 4, 4), dtype=np.float32),
        "others": [{1, 2}, frozenset([3]), b"\xff", 1.5, True, None, np.float64(2.0), 10**30],
    }
    assert tokens_of(tmp_path, pickle.dumps([item], protocol=protocol)) == TOKENS
    outer = np.array([item], dtype=object)
    assert tokens_of(tmp_path, pickle.dumps(outer, protocol=protocol)) == TOKENS


def test_arrays_of_older_numpy_and_python(tmp_path: Path) -> None:
    new = pickle.dumps([{"tokens": np.array(TOKENS, dtype=object)}], protocol=2)
    assert b"numpy._core.multiarray" in new
    old = new.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    assert tokens_of(tmp_path, old) == TOKENS
    # Python 2 wrote an array's bytes as a string of bytes (opcode T).
    raw = np.array(["é", "b"]).tobytes()
    python2 = (
        b"\x80\x02]}U\x06tokenscnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85"
        b"U\x01b\x87R(K\x01K\x02\x85cnumpy\ndtype\nU\x02U1K\x00K\x01\x87R(K\x03U\x01<NNNK\x04K"
        b"\x04K\x00tb\x89T" + struct.pack("<i", len(raw)) + raw + b"tbsa."
    )
    assert tokens_of(tmp_path, python2) == ["é", "b"]


# What must not run ------------------------------------------------------------------------------


class Reduce:
    """Pickles as a call of anything with anything."""

    def __init__(self, *call: Any):
        self.call = call

    def __reduce__(self) -> Any:
        return self.call


def calls(marker: Path) -> dict[str, Any]:
    """Objects that would create the marker if they were unpickled."""
    touch = f"open({str(marker)!r}, 'w').close()"
    shell = f"touch {marker}"
    system = Reduce(os.system, (shell,))
    return {
        "os.system": system,
        "eval": Reduce(builtins.eval, (touch,)),
        "exec": Reduce(builtins.exec, (touch,)),
        "subprocess": Reduce(subprocess.Popen, (["touch", str(marker)],)),
        "getattr": Reduce(builtins.getattr, (Reduce(__import__, ("os",)), "system")),
        "getattr of an allowed class": Reduce(getattr, (list, "__subclasses__")),
        "attrgetter": Reduce(operator.attrgetter("system"), (Reduce(__import__, ("os",)),)),
        "map": Reduce(map, (os.system, [shell])),
        "in an object array": np.array([system, 1], dtype=object),
        "deep in arrays": [{"tokens": np.array([{"a": (system,)}, 1], dtype=object)}],
        "as a key": {Reduce(str, ("a",)): 1, "b": system},
        "in a set state": Reduce(set, ([],), {"x": system}),
        "numpy.load": Reduce(np.load, (str(marker),)),
        "np.frompyfunc": Reduce(np.frompyfunc, (os.system, 1, 1)),
        "open": Reduce(builtins.open, (str(marker), "w")),
        "bytearray": Reduce(bytearray, (10,)),
        "type": Reduce(type, ("A", (), {})),
    }


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
@pytest.mark.parametrize("name", sorted(calls(Path("x"))))
def test_calls_are_refused(name: str, protocol: int, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    path = tmp_path / "bad.pkl"
    path.write_bytes(pickle.dumps(calls(marker)[name], protocol=protocol))
    with pytest.raises(InputError, match=r"is a pickle that holds \S+, which might run") as caught:
        open_data(path)
    assert not marker.exists()
    assert "\n" not in str(caught.value)
    assert "JSONL" in str(caught.value)


def test_the_same_calls_do_run_in_a_common_unpickler(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    pickle.loads(pickle.dumps(calls(marker)["deep in arrays"]))
    assert marker.exists()


def test_the_refused_class_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.pkl"
    path.write_bytes(pickle.dumps(Reduce(os.system, ("true",))))
    with pytest.raises(InputError, match=f"holds {os.system.__module__}.system, which"):
        open_data(path)


RECONSTRUCT = b"cnumpy.core.multiarray\n_reconstruct\n"
ARRAY = RECONSTRUCT + b"cnumpy\nndarray\nK\x00\x85U\x01b\x87R"
OBJECTS = b"cnumpy\ndtype\nU\x02O8K\x00K\x01\x87R"


@pytest.mark.parametrize(
    "content",
    [
        b"cos\nsystem\n(S'touch MARK'\ntR.",  # plain call
        b"(S'touch MARK'\nios\nsystem\n.",  # INST
        b"(cos\nsystem\nS'touch MARK'\no.",  # OBJ
        b"\x80\x04\x8c\x05numpy\x8c\x0ecore.os.system\x93\x8c\x0atouch MARK\x85R.",  # dotted
        b"\x80\x04\x8c\x08builtins\x8c\x0clist.__add__\x93.",
        b"cnumpy.core.multiarray\nos.system\n(S'touch MARK'\ntR.",
        b"\x80\x02cnumpy\nndarray\n)\x81.",  # a new object of a stand-in
        b"\x80\x02cnumpy\ndtype\n}b.",  # a state for a stand-in
        RECONSTRUCT + b"}U\x01aK\x01sb.",
        b"\x80\x02cbuiltins\nlist\nN}U\x06appendK\x01s\x86b.",  # a state for a class
        b"\x80\x02" + RECONSTRUCT + b"cbuiltins\nlist\nK\x00\x85U\x01b\x87R.",  # not an array
        b"\x80\x02cnumpy\ndtype\nU\x03V16K\x00K\x01\x87R.",
        # An object array whose dtype denies having objects, over bytes that would be pointers.
        b"\x80\x02]}U\x06tokens" + ARRAY + b"(K\x01K\x01\x85" + OBJECTS
        + b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x08AAAAAAAAtbsa.",
        # More values than bytes; a shape that would fill the memory.
        b"\x80\x02]}U\x06tokens" + ARRAY + b"(K\x01J\xff\xff\xff\x7f\x85"
        b"cnumpy\ndtype\nU\x02U1K\x00K\x01\x87R(K\x03U\x01<NNNK\x04K\x04K\x00tb\x89U\x04a\0\0\0tbsa.",
        b"\x80\x02]}U\x06tokens" + ARRAY + b"(K\x01J\xff\xff\xff\x7fK\x00\x86" + OBJECTS
        + b"\x89]tbsa.",
        b"c_codecs\nencode\n(S'touch'\nS'rot13'\ntR.",
        b"\x80\x02\x82\x01.",  # extension registry
        b"Ptouch\n.",  # persistent id
        b"\x80\x05\x97.",  # out-of-band buffer
        b"\x80\x04\x95",
        b"",
        b"no pickle at all",
        b"]" * 10,
        b"\x80\x02}.",
        b"\x80\x02]K\x01a.",
        b"\x80\x02]}U\x06tokensK\x01sa.",
        b"\x80\x02]}U\x06tokens]K\x01asa.",
    ],
)  # fmt: skip
def test_crafted_pickles_give_one_line(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "bad.pkl"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        list(open_data(path))
    assert not (tmp_path / "MARK").exists()
    assert "\n" not in str(caught.value)


def test_shared_containers_are_not_unfolded(tmp_path: Path) -> None:
    nested: Any = ["x"]
    for _ in range(60):  # as a tree it would have 2^60 leaves
        nested = [nested, nested]
    content = pickle.dumps([{"tokens": TOKENS, "more": nested}])
    assert tokens_of(tmp_path, content) == TOKENS


def test_stand_ins_do_not_change() -> None:
    for standin in unpickle._Unpickler._ALLOWED.values():
        with pytest.raises((AttributeError, TypeError)):
            standin.attribute = 1
