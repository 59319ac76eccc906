"""What the programs that trainings are told to have of a run, read back from their own stores."""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from training.options.log_targets import LogTarget

Curves = dict[str, list[tuple[int, float]]]
"""(epoch, value) of every figure, in the order in which they are stored."""


@dataclass(slots=True)
class Stored:
    """One run in one store."""

    name: str
    curves: Curves = field(default_factory=dict)
    outcome: dict[str, float] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)


def make_target(kind: str, folder: Path) -> LogTarget:
    """A target whose store lies in the folder; wandb's, which has no place of its own, in WANDB_DIR."""
    places = {"tensorboard": folder / "events", "mlflow": f"sqlite:///{folder / 'mlflow.db'}", "wandb": "tests"}
    return LogTarget(kind, str(places[kind]))


def read_store(kind: str, folder: Path) -> list[Stored]:
    """The runs that the kind's store in the folder has; of wandb's files of one run the newest."""
    return {"tensorboard": _read_tensorboard, "mlflow": _read_mlflow, "wandb": _read_wandb}[kind](folder)


def _read_tensorboard(folder: Path) -> list[Stored]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    runs = []
    for own in sorted((folder / "events").iterdir()):
        found = EventAccumulator(str(own), size_guidance={"scalars": 0}).Reload()
        run = Stored(own.name.rpartition("-")[0])
        for tag in found.Tags()["scalars"]:
            points = [(event.step, event.value) for event in found.Scalars(tag)]
            if [step for step, _ in points] == [0]:
                run.outcome[tag] = points[0][1]
            else:
                run.curves[tag] = points
        content = found.PluginTagToContent("hparams")["_hparams_/session_start_info"]
        for name, value in HParamsPluginData.FromString(content).session_start_info.hparams.items():
            run.options[name] = str(getattr(value, value.WhichOneof("kind")))
        runs.append(run)
    return runs


def _read_mlflow(folder: Path) -> list[Stored]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    runs = []
    for found in client.search_runs([one.experiment_id for one in client.search_experiments()]):
        run = Stored(found.info.run_name, options=dict(found.data.params))
        for key in found.data.metrics:
            points = [(metric.step, metric.value) for metric in client.get_metric_history(found.info.run_id, key)]
            if [step for step, _ in points] == [0]:
                run.outcome[key] = points[0][1]
            else:
                run.curves[key] = points
        runs.append(run)
    return runs


def _read_wandb(folder: Path) -> list[Stored]:
    newest: dict[str, Path] = {}
    for file in sorted((folder / "wandb").glob("offline-run-*/*.wandb"), key=lambda file: file.stat().st_mtime_ns):
        newest[file.name] = file
    return [_read_wandb_file(file) for file in newest.values()]


def _read_wandb_file(file: Path) -> Stored:
    from wandb.proto.wandb_internal_pb2 import Record

    run = Stored(file.stem)
    for content in _read_records(file.read_bytes()):
        record = Record.FromString(content)
        run.name = record.run.display_name or run.name
        for item in record.run.config.update:
            run.options[item.key or ".".join(item.nested_key)] = str(json.loads(item.value_json))
        values = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for name, value in values.items():
            phase, slash, figure = name.partition("/")
            if slash and figure != "epoch":
                run.curves.setdefault(name, []).append((values[f"{phase}/epoch"], value))
        for item in record.summary.update:
            name = item.key or "/".join(item.nested_key)
            if not name.startswith("_"):  # wandb's own clocks
                run.outcome[name] = json.loads(item.value_json)
    return run


def _read_records(data: bytes) -> Iterator[bytes]:
    """wandb's files are logs as LevelDB's: blocks of 32 KiB, whose records have a checksum, a length and a kind."""
    at, parts = 7, b""
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        if kind == 0:
            return
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""
