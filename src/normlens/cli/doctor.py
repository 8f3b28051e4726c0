"""``normlens doctor``: the installation, a check of its numbers, and a calibration of the GPU."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from normlens.cli.printing import add_row, console_for, new_table, print_table, status

if TYPE_CHECKING:
    from normlens.calibration.record import Calibration


def doctor_command(
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate",
            help="Fit the choice of kernels to this GPU and check them in shapes that they were "
            "not tuned for; takes less than a minute and is kept in the cache.",
        ),
    ] = False,
) -> None:
    """Versions, devices, models, and a check of the numbers; exit status 1 if the check fails."""
    if calibrate:
        _calibrate()
        return
    from normlens import doctor

    console = console_for()
    for section, facts in doctor.installation().items():
        table = new_table("", "", left=2)
        table.show_header = False
        for name, fact in facts.items():
            add_row(table, name, fact)
        print_table(console, section.capitalize(), table)
    checks = doctor.self_check()
    title = "Self-check: tiny models against a materialised computation in float64"
    table = new_table("model", "completeness", "difference", "result")
    for check in checks:
        result = "ok" if check.passed else "FAILED"
        numbers = f"{check.completeness:.1e}", f"{check.difference:.1e}"
        add_row(table, check.model_type, *numbers, result)
    print_table(console, title, table)
    if not all(check.passed for check in checks):
        print(
            "error: the self-check failed: maps on this machine cannot be trusted; reinstall "
            "normlens and torch, and report this output if it stays",
            file=sys.stderr,
        )
        raise typer.Exit(1)


def _calibrate() -> None:
    from normlens.calibration import record
    from normlens.calibration.run import calibrate

    with status("calibrating", False):
        calibration = calibrate()
    show_calibration(calibration)
    print(f"wrote {record.write(calibration)}")


def show_calibration(calibration: Calibration) -> None:
    """Print the fitted constants beside the shipped ones, and the shapes that were checked."""
    from normlens.decomposition.costs.kernels import shipped

    console = console_for()
    before = asdict(shipped())
    table = new_table("constant", "shipped", "fitted")
    for name, value in asdict(calibration.constants).items():
        add_row(table, name.replace("_", " "), f"{before[name]:.3g}", f"{value:.3g}")
    print_table(console, f"Cost model on {calibration.gpu}", table)
    table = new_table("d", "d_ff", "heads", "gated", "precision", "error", "tolerance", "kernels")
    for one in calibration.checked:
        sizes = f"{one.d:,}", f"{one.m:,}", str(one.heads), "yes" if one.gated else "no"
        result = "ok" if one.passed else "REFUSED"
        add_row(table, *sizes, one.precision, f"{one.error:.1e}", f"{one.tolerance:.0e}", result)
    print_table(console, "Shapes checked against float64 on a sample", table)
