"""``normlens doctor``: the installation, and a check of its numbers."""

from __future__ import annotations

import sys

import typer

from normlens.cli.printing import add_row, console_for, new_table, print_table


def doctor_command() -> None:
    """Versions, devices, models, and a check of the numbers; exit status 1 if the check fails."""
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
