"""A Ray cluster whose nodes leave and join in the middle of a run, and whose workers are killed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import run_examples as examples
import torch
from pair_examples import fast_tokenizer, with_head
from run_records import forget, state_of

import normlens
from normlens.corpus import Run, resume, run
from normlens.corpus.engines import ray_engine
from normlens.corpus.runs import progress
from normlens.corpus.runs.folder import RunError
from normlens.errors import InputError, ModelLoadError

ray = pytest.importorskip("ray", reason="needs Ray (pip install 'normlens[ray]')")

N, BLOCK = 40, 2
PATIENCE = 180.0
QUICK = Path(__file__).parents[2] / "quick_ray"
#: Leaves a mark for each sequence in a note of the node that it runs on. Once a node was taken
#: away, sequences wait until there are notes of three.
SLOW = """
import os, pathlib, signal, time
from normlens.corpus.measures import measure

HERE = pathlib.Path(__file__).parent

@measure(schema={"length": int})
def slow(item):
    import ray
    if ray.is_initialized():
        node = ray.get_runtime_context().get_node_id()
        with (HERE / "nodes" / node).open("a") as note:
            note.write("x")
        time.sleep(0.1)
        last = time.monotonic() + PATIENCE
        while (HERE / "taken").exists() and len(list((HERE / "nodes").iterdir())) < 3:
            if time.monotonic() > last:
                raise RuntimeError("no third node came")
            time.sleep(0.1)
    return {"length": [len(item)]}

@measure(schema={"length": int})
def poison(item):
    import ray
    if item.index == CULPRIT and ray.is_initialized():
        with (HERE / "visits").open("a") as visits:
            visits.write("x")
        os.kill(os.getpid(), signal.SIGKILL)
    if item.index == CULPRIT:
        raise ValueError("poison")
    return {"length": [len(item)]}

@measure(schema={"length": int})
def odd(item):
    if item.index == 2:
        raise SystemExit(0)
    if item.index == CULPRIT:
        time.sleep(3600)
    return {"length": [len(item)]}
""".replace("PATIENCE", str(PATIENCE)).replace("CULPRIT", "5")
NODE = {"num_cpus": 1, "num_gpus": 1, "object_store_memory": 100 << 20}
OPTIONS: dict[str, Any] = {"measures": "similarity,mixing,slow_measure:slow", "block_size": BLOCK}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("ray")
    (folder / "nodes").mkdir()
    (folder / "slow_measure.py").write_text(SLOW)
    examples.tiny_checkpoint(folder / "model")
    examples.corpus_file(folder / "corpus.txt", N)
    return folder


def patient(get_node: Callable[..., Any]) -> Callable[..., Any]:
    """Wait longer for a new node than Ray does, which gives up after 30 s."""

    def wait_for_node(*given: Any) -> Any:
        last = time.monotonic() + PATIENCE
        while True:
            try:
                return get_node(*given)
            except RuntimeError:
                if time.monotonic() > last:
                    raise

    return wait_for_node


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[Any]:
    """Two nodes with a CPU and what they take for a GPU; PYTHONPATH leads to the test's measure."""
    from ray._private import services
    from ray.cluster_utils import Cluster

    source = Path(normlens.__file__).parents[1]
    patch = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", os.pathsep.join(map(str, (QUICK, folder, source))))
    patch.syspath_prepend(folder)
    # On a busy machine a node needs longer to start than Ray allows.
    patch.setenv("RAY_agent_register_timeout_ms", str(int(1000 * PATIENCE)))
    patch.setattr(services, "get_node", patient(services.get_node))
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            **NODE,
            # A lost node is noticed within seconds instead of half a minute.
            "_system_config": {
                "health_check_initial_delay_ms": 1000,
                "health_check_period_ms": 500,
                "health_check_failure_threshold": 3,
            },
        },
    )
    try:
        second = cluster.add_node(**NODE)
        cluster.wait_for_nodes()
        yield cluster, second
    finally:
        ray.shutdown()
        cluster.shutdown()
        patch.undo()


class Exchanging(progress.Progress):
    """Takes a node away once it has finished a block and is working on others; brings another."""

    def __init__(self, cluster: Any, node: Any, folder: Path):
        self.cluster, self.node, self.folder = cluster, node, folder
        self.done = 0
        self.taken_at: int | None = None

    def advance(self, sequences: int, failures: int) -> None:
        self.done += sequences
        note = self.folder / "nodes" / self.node.node_id
        # It holds three blocks at a time, so that one at least has come back by then.
        if self.taken_at is None and note.exists() and len(note.read_text()) > 3 * BLOCK:
            self.taken_at = self.done
            # In a thread of its own: waiting for the node to be gone must not stop the run.
            threading.Thread(
                target=self.cluster.remove_node, args=(self.node, False), daemon=True
            ).start()
            (self.folder / "taken").touch()
            self.cluster.add_node(**NODE)  # whose signal handlers only this thread can set


def test_nodes_leave_and_join_and_no_row_is_lost(folder: Path, cluster: Any) -> None:
    both, second = cluster
    exchanging = Exchanging(both, second, folder)
    done = run(
        folder / "model",
        folder / "corpus.txt",
        folder / "run",
        engine="ray",
        address=both.address,
        workers="auto",
        resources="gpu=1",  # each worker fills its node
        device="cpu",
        progress=exchanging,
        **OPTIONS,
    )
    assert exchanging.taken_at is not None
    assert exchanging.taken_at < N - 2 * BLOCK
    # Two workers, and a third on the node that joined; what the lost one had is computed again.
    records = state_of(done).records.values()
    assert len({record.by["pid"] for record in records}) >= 2
    assert len(list((folder / "nodes").iterdir())) == 3
    examples.assert_each_once(done)
    assert done.status().failures == 0
    assert done.status().attempts, "what the lost node held was suspect"
    lens = normlens.load(folder / "model", device="cpu")
    alone = run(lens, folder / "corpus.txt", folder / "alone", **OPTIONS)
    examples.assert_same_tables(done, alone)
    # Another engine can finish what Ray has begun.
    forget(folder / "run", 7)
    again = resume(folder / "run", model=lens, measures=OPTIONS["measures"])
    examples.assert_same_tables(again, alone)
    assert Run.open(folder / "run").manifest.execution["engine"] == "ray"


@examples.some_fail
def test_a_sequence_that_kills_its_worker_becomes_a_failure(folder: Path, cluster: Any) -> None:
    both, _ = cluster
    options: dict[str, Any] = {"measures": "similarity,amplification,slow_measure:poison"}
    options |= {"block_size": 4, "limit": 12, "device": "cpu"}
    lines = folder / "corpus.txt"
    done = run(
        folder / "model",
        lines,
        folder / "poisoned",
        engine="ray",
        address=both.address,
        attempts=1,
        resources="cpu=1",  # with one thread, as here: last digits depend on their number
        **options,
    )
    assert done.table("failures")["index"].tolist() == [5]
    assert "kills its worker" in done.table("failures")["reason"][0]
    assert len((folder / "visits").read_text()) == 1 + 2
    assert done.status().attempts[5 // 4] == 1 + 2
    examples.assert_each_once(done)
    expected = run(folder / "model", lines, folder / "unpoisoned", **options)
    for name in set(done.tables) - {"failures"}:
        a, b = done.table(name), expected.table(name)
        examples.assert_same_frames(a, b, name, tolerance=0)


@examples.some_fail
def test_sequences_that_hang_or_exit_become_failures(
    folder: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, _ = cluster
    monkeypatch.setattr(ray_engine, "LOOK", 0.5)
    options: dict[str, Any] = {"measures": "mixing,slow_measure:odd", "block_size": 4, "limit": 12}
    options |= {"engine": "ray", "address": both.address, "resources": "cpu=1", "device": "cpu"}
    done = run(
        folder / "model", folder / "corpus.txt", folder / "odd", sequence_timeout=8, **options
    )
    examples.assert_each_once(done)
    assert done.table("failures").set_index("index")["reason"].to_dict() == {
        2: "odd: it ended with SystemExit (0) instead of a result",
        5: "it took longer than 8 s (sequence_timeout), each time it was tried alone",
    }
    assert done.status().attempts[5 // 4] == 1 + 2
    assert len(done.table("odd")) == 12 - 2


@pytest.mark.parametrize(
    ("package", "message"),
    [
        ({"__init__.py": "raise ImportError('not here')"}, "has no normlens; install there"),
        (
            {"__init__.py": "", "_version.py": "__version__ = '0.0.1'"},
            "has normlens 0.0.1, and this process has",
        ),
    ],
)
def test_software_of_nodes_is_checked_before_anything_is_computed(
    folder: Path,
    cluster: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    package: dict[str, str],
    message: str,
) -> None:
    both, _ = cluster
    (tmp_path / "normlens").mkdir()
    for name, text in package.items():
        (tmp_path / "normlens" / name).write_text(text)
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{QUICK}{os.pathsep}{tmp_path}")
        other = both.add_node(**NODE, resources={"other": 1})
    try:
        with pytest.raises(RunError, match=message):
            run(
                folder / "model",
                folder / "corpus.txt",
                tmp_path / "run",
                engine="ray",
                address=both.address,
                resources="other=1",
                device="cpu",
                measures="mixing",
            )
    finally:
        both.remove_node(other, False)
    assert not (tmp_path / "run/manifest.json").exists()


def test_resources_that_no_node_has_are_one_line(folder: Path, cluster: Any) -> None:
    both, _ = cluster
    with pytest.raises(RunError, match=r"has room for a worker \(tpu=4,gpu=1\)"):
        run(
            folder / "model",
            folder / "corpus.txt",
            folder / "none",
            engine="ray",
            address=both.address,
            resources="tpu=4,gpu=1",
            device="cpu",
        )


def test_errors_of_workers_are_one_line(folder: Path, cluster: Any) -> None:
    both, _ = cluster
    options: dict[str, Any] = {"engine": "ray", "address": both.address, "measures": "mixing"}
    with pytest.raises(ModelLoadError, match="does not exist") as caught:
        run(folder / "no-model", folder / "corpus.txt", folder / "none", **options)
    assert "\n" not in str(caught.value)
    lens = normlens.load(folder / "model", device="cpu")
    with pytest.raises(InputError, match="loaded lens"):
        run(lens, folder / "corpus.txt", folder / "none", **options)


@pytest.mark.guard
def test_pairs_of_an_encoder_decoder_come_to_the_same_tables(folder: Path, cluster: Any) -> None:
    both, _ = cluster
    checkpoint, lines = folder / "bart", folder / "pairs.txt"
    with_head("bart").save_pretrained(checkpoint)
    fast_tokenizer().save_pretrained(checkpoint)
    lines.write_text("the house ||| la maison\nis small ||| est petite\ngreen ||| verte\n")
    measures = "similarity,mixing,norms,amplification,explanations"
    options: dict[str, Any] = {"measures": measures, "block_size": 1}
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
