"""Times of the kernels' methods beside each other, and their norms beside float64.

The kernels need Triton, so this module is imported only where they run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import torch

from normlens.analysing.verdicts import SAMPLE_TOLERANCE
from normlens.calibration.fit import Measured
from normlens.calibration.jobs import RandomJob
from normlens.calibration.record import Checked
from normlens.decomposition.costs.calibrated import BlockShape
from normlens.decomposition.feedforward_job import FeedForwardJob
from normlens.decomposition.fused.choice import by_source, fused_norms
from normlens.decomposition.fused.gather import Activity, Gather
from normlens.decomposition.fused.matrices import Matrices
from normlens.decomposition.fused.method import Method
from normlens.decomposition.fused.precision import PRECISIONS, Precision
from normlens.decomposition.fused.stage import Stage
from normlens.decomposition.fused.tail import tail_of
from normlens.decomposition.sample import sampled_error

#: The stages that are timed: one shape, whose kernels are compiled once for each precision.
TIMED = BlockShape(768, 3072, 12, gated=False)
TOKENS, SHARES = (256, 1024), (0.05, 0.3)
TIMED_PRECISIONS = ("tf32", "float32")
#: Runs of a method, of which the median counts, behind one that compiles.
RUNS = 5

#: Shapes that the tiles of the kernels were not chosen for, and the texts they are checked with.
UNTUNED = (
    BlockShape(576, 1536, 9, gated=True),
    BlockShape(312, 1200, 12, gated=False),
    BlockShape(2560, 10240, 32, gated=False),
    BlockShape(4096, 14336, 32, gated=True),
)
CHECKED_TOKENS = 70

#: Gives the seconds of a run.
Clock = Callable[[Callable[[], object]], float]


def seconds_on_gpu(run: Callable[[], object]) -> float:
    """Seconds of a run between events on the current GPU; the median of some, behind a first."""
    run()
    times = []
    for _ in range(RUNS):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        run()
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last) / 1e3)
    return statistics.median(times)


def measured(
    device: torch.device,
    until: float,
    clock: Clock = seconds_on_gpu,
    shape: BlockShape = TIMED,
    tokens: Sequence[int] = TOKENS,
) -> Iterator[Measured]:
    """Every method's time on some stages, as far as they are done at the time `until`."""
    for name in TIMED_PRECISIONS:
        precision = PRECISIONS[name]
        for n in tokens:
            for share in SHARES:
                if time.monotonic() > until:
                    return
                job = RandomJob(shape, n, share).on(device)
                base = clock(by_source(_stage(job, n, precision)).run)
                if share == SHARES[0]:  # the others do not look at activity
                    yield _beside(base, Matrices(_stage(job, n, precision)), None, clock)
                stage = _stage(job, n, precision)
                if not stage.has_head_products:
                    continue  # which gathering needs
                activity = Activity.of(stage)
                yield _beside(base, Gather(stage, activity), activity.share, clock)


def _beside(base: float, method: Method, share: float | None, clock: Clock) -> Measured:
    stage = method.stage
    return Measured(stage.shape, stage.precision, share, clock(method.run) / base)


def _stage(job: FeedForwardJob, n: int, precision: Precision) -> Stage:
    tail = tail_of(job)
    assert tail is not None
    return Stage(job, tail, [n], precision)


def checked(
    device: torch.device,
    until: float,
    shapes: Sequence[BlockShape] = UNTUNED,
    precisions: Sequence[str] = tuple(PRECISIONS),
) -> Iterator[Checked]:
    """Compare the kernels' norms with float64 on a sample of pairs, in each of the shapes.

    Precisions change slowest: what is not done at the time `until` is the less exact ones.
    """
    for precision in precisions:
        for shape in shapes:
            if time.monotonic() > until:
                return
            job = RandomJob(shape, CHECKED_TOKENS)
            norms = fused_norms(job.on(device), [CHECKED_TOKENS], precision).norms
            exact = job.on(device, torch.float64)
            wide = {scope: found.double() for scope, found in norms.items()}
            error = float(sampled_error(exact, [CHECKED_TOKENS], wide))
            yield Checked(*shape, precision, error, SAMPLE_TOLERANCE[precision])
