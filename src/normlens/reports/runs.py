"""A run as a report's header describes it: its model, its data and how much was analysed."""

from __future__ import annotations

from normlens.corpus.runs.paths import shown_data
from normlens.corpus.runs.results import Run
from normlens.loading.hub import shown_name
from normlens.reports.content import Measured, Model


def model_of(run: Run) -> Model:
    """Describe the run's model; of a model in a folder, the name is the folder's last part."""
    return Model.of({**run.manifest.model, "name": shown_name(run.manifest.model["name"])})


def measured(run: Run, data: str, folder: str = "") -> Measured:
    """Describe the run; `data` is the data set's short name, `folder` the run's in the report."""
    manifest, status = run.manifest, run.status()
    worst = run.sql("SELECT max(completeness) AS worst FROM sequences")["worst"].iloc[0]
    return Measured(
        data=data,
        source=shown_data(manifest.data["name"]),
        sequences=status.done - status.failures,
        tokens=status.tokens,
        failures=status.failures,
        completeness=None if worst != worst else float(worst),
        mask=manifest.options.mask,
        date=manifest.created,
        folder=folder,
    )
