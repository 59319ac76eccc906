"""A training in MLflow: a run of its own in a tracking store, which is a database file or a server."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from typing import Any

from index.errors import InputError
from training.options.log_targets import LogTarget, hide_password
from training.run.log.loggers import WatchedRun

TAG = "retrieval.run_id"
_EXPERIMENT = "retrieval"
_STORE = "sqlite:///mlflow.db"  # in the working folder, whatever lies there of MLflow's earlier ways
_MOST_PARAMETERS, _MOST_METRICS = 100, 1000  # that MLflow takes in one call
_LONGEST = 6000  # characters of a parameter
_IMPATIENT = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
"""A server that is gone would hold the training up for minutes; what somebody has set himself stays."""
_SEND_EVERY_S = 1.0  # a call takes some 30 ms, an epoch of a head a few; what a kill costs, a resume tells


class MlflowTracker:
    """Metrics `PHASE/FIGURE` by epoch; the run is found again by the tag that has the run folder's id."""

    def __init__(self, client: Any, run: WatchedRun) -> None:
        self._client = client
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or _EXPERIMENT
        known = client.get_experiment_by_name(name)
        experiment = str(client.create_experiment(name) if known is None else known.experiment_id)
        found = client.search_runs([experiment], filter_string=f"tags.`{TAG}` = '{run.run_id}'", max_results=1)
        self._known = set[tuple[str, int]]()
        self._waiting: list[Any] = []
        self._sent = time.monotonic()
        if found:
            self._id = found[0].info.run_id
            for key in found[0].data.metrics:
                self._known |= {(key, one.step) for one in client.get_metric_history(self._id, key)}
            client.update_run(self._id, status="RUNNING")
        else:
            self._id = client.create_run(experiment, run_name=run.name, tags={TAG: run.run_id}).info.run_id
            self._tell_options(run.options)
        self.where = f"run {self._id} in {client.tracking_uri}"

    def tell_epoch(self, phase: str, epoch: int, figures: Mapping[str, float], *, number: int) -> None:
        self._add({f"{phase}/{name}": value for name, value in figures.items()}, step=epoch)

    def tell_outcome(self, figures: Mapping[str, float], words: Mapping[str, str]) -> None:
        for name, text in words.items():
            self._client.set_tag(self._id, name, text)
        self._add(figures, step=0)
        self._send()

    def close(self, *, finished: bool) -> None:
        self._send()
        self._client.set_terminated(self._id, status="FINISHED" if finished else "KILLED")

    def _tell_options(self, options: Mapping[str, object]) -> None:
        from mlflow.entities import Param

        params = [Param(name, str(value)[:_LONGEST]) for name, value in options.items()]
        for first in range(0, len(params), _MOST_PARAMETERS):
            self._client.log_batch(self._id, params=params[first : first + _MOST_PARAMETERS])

    def _add(self, figures: Mapping[str, float], *, step: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        new = [Metric(key, value, now, step) for key, value in figures.items() if (key, step) not in self._known]
        self._known.update((metric.key, step) for metric in new)
        self._waiting += new
        if time.monotonic() - self._sent > _SEND_EVERY_S or len(self._waiting) > _MOST_METRICS // 2:
            self._send()

    def _send(self) -> None:
        for first in range(0, len(self._waiting), _MOST_METRICS):
            self._client.log_batch(self._id, metrics=self._waiting[first : first + _MOST_METRICS])
        self._waiting.clear()
        self._sent = time.monotonic()


def open_tracker(place: str | None, run: WatchedRun) -> MlflowTracker:
    """Begin or go on in the store `place`; None is what MLFLOW_TRACKING_URI says, else `mlflow.db` where we are."""
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    for name, value in _IMPATIENT.items():
        os.environ.setdefault(name, value)
    for name in ("mlflow", "alembic"):  # which tell of every table that they make
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        told = place or os.environ.get("MLFLOW_TRACKING_URI") or _STORE
        return MlflowTracker(MlflowClient(tracking_uri=told), run)
    except (MlflowException, OSError) as error:
        advice = "a file is sqlite:///NAME.db, a server http://HOST:5000"
        shown, problem = LogTarget("mlflow", place), hide_password(" ".join(str(error).split()))
        raise InputError(f"{shown}: MLflow cannot open it; {advice}: {problem}") from error
