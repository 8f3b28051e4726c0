"""Too little memory, on any device and by any library's words, is one line that says what to do."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from forking import run_python
from one_case import in_one_case
from pair_examples import with_head
from test_text import wordpiece

import normlens
from normlens.errors import MemoryLimitError, is_out_of_memory
from normlens.models.tiny import tiny_model

#: Of oneDNN, which says no more, when a product gets no memory.
NO_PRIMITIVE = "could not create a primitive"


@in_one_case(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"
        ),
        RuntimeError(NO_PRIMITIVE),
        RuntimeError("std::bad_alloc"),
        OSError(12, "Cannot allocate memory"),
        ImportError("library.so: failed to map segment from shared object"),
    ],
)
def test_out_of_memory(error):
    assert is_out_of_memory(error)


def fail(*_: Any, **__: Any) -> None:
    raise RuntimeError(NO_PRIMITIVE)


def bert_lens() -> normlens.Lens:
    return normlens.load(tiny_model("bert", pad_token_id=0), wordpiece())


def pair_lens() -> normlens.Lens:
    return normlens.load(with_head("bart"), False)


@in_one_case(
    ("make", "analyse"),
    [
        (bert_lens, lambda lens: lens.maps("the dog")),
        (bert_lens, lambda lens: lens.maps("the dog", origin="input")),
        (bert_lens, lambda lens: lens.explain("the dog", position=1, direction=[1.0] * 16)),
        (bert_lens, lambda lens: lens.cosine("the dog", "the cat")),
        (pair_lens, lambda lens: lens.maps(input_ids=[5, 6, 7])),
        (pair_lens, lambda lens: lens.explain(input_ids=[5, 6, 7])),
    ],
)
def test_an_analysis_without_memory(make: Callable[[], Any], analyse: Callable[[Any], Any]) -> None:
    lens = make()
    analyse(lens)
    list(lens.adapter.blocks())[1].register_forward_pre_hook(fail)
    with pytest.raises(MemoryLimitError) as caught:
        analyse(lens)
    assert "; use " in str(caught.value)
    assert NO_PRIMITIVE in str(caught.value.__cause__ or caught.value.__context__)


@in_one_case("embedded", [True, False])
def test_loading_without_memory(
    embedded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no fault of the files."""
    tiny_model("bert").save_pretrained(tmp_path)
    monkeypatch.setattr("transformers.PreTrainedModel.from_pretrained", fail)
    with pytest.raises(MemoryLimitError) as caught:
        normlens.load("minilm" if embedded else tmp_path)
    assert "damaged" not in str(caught.value)


#: A command under a limit of its addresses, so many MB above what the process has.
LIMITED = """
    import resource, sys
    from normlens.cli import main
    import normlens.loading.load, transformers.models.bert.modeling_bert

    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    limit = now + int(sys.argv[1]) * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    sys.exit(main(["map", "--model", "minilm", "--truncate", "Some words. " * 300]))
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
@in_one_case("room", [60, 290])  # too little to load, and to analyse
def test_a_limit_of_the_process_is_named(room: int) -> None:
    done = run_python(textwrap.dedent(LIMITED), room)
    assert done.returncode == 2, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "error" in line.lower()]
    assert "memory" in line
    assert "ulimit -v" in line
    assert "Traceback" not in done.stderr
