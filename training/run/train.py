"""Training run, from labelled images to a run folder: `train` calls its steps in order."""

import time
from pathlib import Path
from typing import Any

from index.errors import InputError
from training.options.config import TrainConfig
from training.options.machine import Machine
from training.options.resolve import why_frozen
from training.run.finetuning.stage import finetune_backbone
from training.run.fit import fit_frozen
from training.run.holdout import evaluate_run_holdout, verdict_on_holdout
from training.run.label_confidences import estimate_run_confidences
from training.run.phases import TrainingJob, Watcher
from training.run.prepare import list_inputs, prepare_data
from training.run.run_folder import RunFolder
from training.run.selecting import evaluate_methods, save_selected
from training.run.verdict import SEARCHED


def train(
    data: Path,
    out: Path,
    *,
    config: TrainConfig,
    machine: Machine,
    val: Path | None = None,
    resume: bool = False,
    watcher: Watcher | None = None,
) -> dict[str, Any]:
    """Train on a folder of class folders, a table or a gallery, into a run folder; returns the report of report.json.

    Args:
        val: labelled images for evaluation, which select the exported embedding (`--select auto`).
        resume: continue an interrupted run; a finished one returns its report.
    """
    started, watcher = time.perf_counter(), watcher or Watcher()
    begun = RunFolder.open(out, resuming=True) if resume else None
    if begun is not None:
        begun.check_same(config=config, data=data, val=val)
        if (out / "report.json").exists():
            return begun.read_json("report.json")
    listed = list_inputs(data, val, out=out, config=config, machine=machine, is_new=begun is None)
    run = begun or RunFolder.create(out, config=config, data=data, val=val)
    job = TrainingJob(run, config, machine, watcher)
    run.begin_metrics()
    try:
        if (reason := why_frozen(config.given)) is not None:
            watcher.on_note(f"the network stays frozen: {reason}")
        prepared = prepare_data(job, *listed, data=data)
    except InputError:
        if begun is None:
            run.discard()
        raise
    confidences = estimate_run_confidences(job, prepared.training)
    holdout = evaluate_run_holdout(job, prepared, confidences)
    verdict = verdict_on_holdout(config, holdout)
    frozen = fit_frozen(job, prepared, confidences, holdout=holdout, verdict=verdict)
    stage = None
    if config.finetuning.trains:
        if verdict is not None and verdict.answers:
            leads = (f"{SEARCHED[name]}: {one.describe_lead()}" for name, one in verdict.answers.items())
            watcher.on_note(f"before fine-tuning: {'; '.join(leads)}")
        stage = finetune_backbone(job, prepared, confidences, frozen)
    evaluation = evaluate_methods(job, prepared, confidences, frozen=frozen, stage=stage, verdict=verdict)
    report = save_selected(job, prepared, evaluation, frozen=frozen, stage=stage)
    report |= {"holdout": holdout, "confidences": None if confidences is None else confidences.to_json()}
    run.write_json("report.json", {**report, "seconds": time.perf_counter() - started})
    return run.read_json("report.json")  # equal to the answer of a resumed finished run
