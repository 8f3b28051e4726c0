"""One calibration of the GPU at hand, in less than a minute."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable

import torch

from normlens.calibration.fit import fitted
from normlens.calibration.record import Calibration, versions
from normlens.decomposition.costs.kernels import shipped
from normlens.decomposition.devices import kernels_run_on
from normlens.device_constants import current
from normlens.errors import InputError

#: Seconds behind which nothing new is begun: for the times, and for the checks behind them.
FOR_TIMES, FOR_ALL = 25.0, 45.0
#: Fewer times tell too little about four constants.
FEWEST = 4


def calibrate(say: Callable[[str], None] = lambda _: None) -> Calibration:
    """Fit the cost model to the current GPU and check shapes there."""
    device = torch.device("cuda")
    if not torch.cuda.is_available() or not kernels_run_on(device, torch.float32):
        raise InputError(
            "there is nothing to calibrate: this machine has no GPU that runs the kernels (CUDA "
            "from compute capability 8.0 on, with Triton)"
        )
    from normlens.calibration.measure import checked, measured

    started = time.monotonic()
    with current(device):
        say("timing the kernels' methods")
        times = list(measured(device, started + FOR_TIMES))
        if len(times) < FEWEST:
            raise InputError(
                f"only {len(times)} times could be taken in {FOR_TIMES:.0f} s, too few to "
                "calibrate; try again when the GPU is idle: kernels that are compiled now are kept"
            )
        say("checking shapes against float64")
        checks = tuple(checked(device, started + FOR_ALL))
    return Calibration(
        torch.cuda.get_device_name(device),
        versions(),
        datetime.date.today().isoformat(),
        fitted(times, shipped()),
        checks,
    )
