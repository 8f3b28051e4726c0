"""A Ray cluster of two nodes that loses one in the middle of a run."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import run_examples as examples
import torch
from pair_examples import fast_tokenizer, with_head
from run_logs import forget

import normlens
from normlens.corpus import Run, resume, run
from normlens.corpus.runs import progress
from normlens.corpus.runs.log import read_state
from normlens.errors import InputError, ModelLoadError

ray = pytest.importorskip("ray", reason="needs Ray (pip install 'normlens[ray]')")

pytestmark = pytest.mark.slow
N, SHARD = 40, 2
#: Takes its time, and leaves a mark for each sequence in a note of the node that it runs on.
SLOW = """
import pathlib, time
from normlens.corpus.measures import measure

@measure(schema={"length": int})
def slow(item):
    import ray
    if ray.is_initialized():
        node = ray.get_runtime_context().get_node_id()
        with (pathlib.Path(__file__).parent / "nodes" / node).open("a") as note:
            note.write("x")
        time.sleep(0.1)
    return {"length": [len(item)]}
"""
OPTIONS: dict[str, Any] = {"measures": "similarity,mixing,slow_measure:slow", "shard_size": SHARD}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("ray")
    (folder / "nodes").mkdir()
    (folder / "slow_measure.py").write_text(SLOW)
    examples.tiny_checkpoint(folder / "model")
    examples.corpus_file(folder / "corpus.txt", N)
    return folder


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[Any]:
    """Two nodes with a CPU and what they take for a GPU; PYTHONPATH leads to the test's measure."""
    from ray.cluster_utils import Cluster

    source = Path(normlens.__file__).parents[1]
    patch = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(source)]))
    patch.syspath_prepend(folder)
    common = {"num_cpus": 1, "num_gpus": 1, "object_store_memory": 100 << 20}
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            **common,
            # A lost node is noticed within seconds instead of half a minute.
            "_system_config": {
                "health_check_initial_delay_ms": 1000,
                "health_check_period_ms": 500,
                "health_check_failure_threshold": 3,
            },
        },
    )
    try:
        second = cluster.add_node(**common)
        cluster.wait_for_nodes()
        yield cluster, second
    finally:
        ray.shutdown()
        cluster.shutdown()
        patch.undo()


class Killing(progress.Progress):
    """Takes a node away once it has finished some shards and is working on others."""

    def __init__(self, cluster: Any, node: Any, notes: Path):
        self.cluster, self.node, self.notes = cluster, node, notes
        self.done = 0
        self.killed_at: int | None = None

    def advance(self, sequences: int, failures: int) -> None:
        self.done += sequences
        note = self.notes / self.node.node_id
        # It holds two shards at a time, so that one at least has come back by then.
        if self.killed_at is None and note.exists() and len(note.read_text()) > 3 * SHARD:
            self.killed_at = self.done
            # In a thread of its own: waiting for the node to be gone must not stop the run.
            threading.Thread(
                target=self.cluster.remove_node, args=(self.node, False), daemon=True
            ).start()


def test_a_lost_node_loses_no_row(folder: Path, cluster: Any) -> None:
    both, second = cluster
    killing = Killing(both, second, folder / "nodes")
    done = run(
        folder / "model",
        folder / "corpus.txt",
        folder / "run",
        engine="ray",
        address=both.address,
        workers=2,
        # Each worker fills its node, so that the lost one waits until the other has finished.
        gpus_per_worker=1,
        device="cpu",
        progress=killing,
        **OPTIONS,
    )
    assert killing.killed_at is not None
    assert killing.killed_at < N - 2 * SHARD
    # Two workers, and a third in place of the one that was lost.
    shards = read_state(done.folder, done.manifest).done.values()
    assert len({shard.by["pid"] for shard in shards}) == 3
    examples.assert_each_once(done)
    lens = normlens.load(folder / "model", device="cpu")
    alone = run(lens, folder / "corpus.txt", folder / "alone", **OPTIONS)
    examples.assert_same_tables(done, alone)
    # Another engine can finish what Ray has begun.
    forget(folder / "run", 7)
    again = resume(folder / "run", model=lens, measures=OPTIONS["measures"])
    examples.assert_same_tables(again, alone)
    assert Run.open(folder / "run").manifest.execution["engine"] == "ray"


def test_errors_of_workers_are_one_line(folder: Path, cluster: Any) -> None:
    both, _ = cluster
    options: dict[str, Any] = {"engine": "ray", "address": both.address, "measures": "mixing"}
    with pytest.raises(ModelLoadError, match="does not exist") as caught:
        run(folder / "no-model", folder / "corpus.txt", folder / "none", **options)
    assert "\n" not in str(caught.value)
    lens = normlens.load(folder / "model", device="cpu")
    with pytest.raises(InputError, match="loaded lens"):
        run(lens, folder / "corpus.txt", folder / "none", **options)


def test_pairs_of_an_encoder_decoder_come_to_the_same_tables(folder: Path, cluster: Any) -> None:
    both, _ = cluster
    checkpoint, lines = folder / "bart", folder / "pairs.txt"
    with_head("bart").save_pretrained(checkpoint)
    fast_tokenizer().save_pretrained(checkpoint)
    lines.write_text("the house ||| la maison\nis small ||| est petite\ngreen ||| verte\n")
    measures = "similarity,mixing,norms,amplification,explanations"
    options: dict[str, Any] = {"measures": measures, "shard_size": 1}
    spread = run(
        checkpoint,
        lines,
        folder / "of-ray",
        engine="ray",
        address=both.address,
        workers=1,
        device="cpu",
        **options,
    )
    examples.assert_each_once(spread)
    alone = run(checkpoint, lines, folder / "of-one", device="cpu", **options)
    examples.assert_same_tables(spread, alone)
    assert set(spread.table("mixing")["stack"]) == {"encoder", "decoder"}
