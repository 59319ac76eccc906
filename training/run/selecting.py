"""Selection of the exported embedding: scores on --val, the verdict, and the files and report of the run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from index.evaluation.metrics import RetrievalScores
from training.backbone.backbones import load_backbone
from training.confidence.confidences import LabelConfidences
from training.head.embedding_heads import Head
from training.head.untrained import UNTRAINED_DIM, count_directions, fit_rivals, fit_untrained
from training.options.losses import RIVALS, UNTRAINED_METHODS
from training.run.copy_stage import COPY_PHASE, COPY_STATE, train_copy_head
from training.run.finetuning.stage import StageResult
from training.run.fit import FrozenEmbedding
from training.run.label_confidences import known_weights
from training.run.phases import TrainingJob
from training.run.prepare import PreparedData, open_extractor, prepare_validation
from training.run.run_folder import FINETUNED
from training.run.searches import KnownImages, Searches, SearchScores, plan_searches
from training.run.verdict import FROZEN_HEAD, TRAINED, VAL, Verdict, compare


def judge_by_val(
    verdict: Verdict,
    found: Mapping[str, RetrievalScores],
    validation: KnownImages,
    *,
    classes: Sequence[str],
    seed: int,
) -> Verdict:
    """The verdict with answers by --val, whose labels say which of both: training `classes` are known, others new.

    Of too few classes for an interval, an answer that is there already stays.

    Args:
        found: scores of the validation images by method.
    """
    labels = found[TRAINED].labels
    is_known = np.isin(labels, validation.numbers[np.isin(validation.labels, classes)])
    rows = {name: of_name for name, of_name in (("known", is_known), ("new", ~is_known)) if of_name.any()}
    answers, parts = dict(verdict.answers), len(rows.keys() | verdict.answers.keys())
    for name, of_name in rows.items():
        hits = {method: one.hits[1][of_name] for method, one in found.items()}
        answer = compare(hits, labels[of_name], seed=seed, parts=parts, by=VAL)
        if answer.difference_interval is not None or name not in answers:
            answers[name] = answer
    return replace(verdict, answers=answers)


@dataclass(frozen=True, slots=True)
class MethodScores:
    """Heads of all methods by name, their scores on --val, the searches of --val, and the verdict."""

    heads: Mapping[str, Head]
    scores: Mapping[str, SearchScores]
    searches: Searches | None
    verdict: Verdict | None

    def to_json(self, exported: str, *, method: str) -> dict[str, Any]:
        """JSON values for the report; `method` is that of the embedding with the name `exported`."""
        found = self.scores[exported if exported in self.scores else method] if self.scores else None
        baselines = {
            name: {"embedding_dim": self.heads[name].embedding_dim, **one.to_json()}
            for name, one in self.scores.items()
            if name != exported or name in RIVALS
        }
        groups = None if self.searches is None else self.searches.groups
        return {
            "val": None if found is None else found.to_json(),
            "val_groups": None if groups is None else groups.to_json(),
            "baselines": None if self.searches is None else baselines,
            "verdict": None if self.verdict is None else self.verdict.to_json(),
        }


def evaluate_methods(
    job: TrainingJob,
    prepared: PreparedData,
    confidences: LabelConfidences | None,
    *,
    frozen: FrozenEmbedding,
    stage: StageResult | None,
    verdict: Verdict | None,
) -> MethodScores:
    """Score all methods on --val, and complete the verdict of the holdout evaluation."""
    training, validation, config = prepared.training, prepared.validation, job.config
    finetuned = None if stage is None else stage.head
    network = None if finetuned is None else stage
    trained = frozen.head if finetuned is None else finetuned
    if verdict is not None:
        widths = dict.fromkeys((TRAINED, FROZEN_HEAD, *RIVALS), frozen.plan.width)
        widths |= {"raw": training.features.shape[1]}
        verdict = replace(verdict, widths=widths, finetuning=None if stage is None else stage.report)
        if network is not None:
            verdict = replace(
                verdict,
                answers=network.answers,
                heads=verdict.answers,
                widths={**widths, TRAINED: trained.embedding_dim},
                unmeasured="fine-tuning held out no such photos: too few photos or classes",
            )
    if validation is None:
        return MethodScores({TRAINED: trained}, {}, None, verdict)
    searches = plan_searches(validation, (training if network is None else network.images).known)
    labelled = training.labelled(known_weights(confidences, config=config))
    heads = fit_rivals(labelled, embedding_dim=frozen.plan.width)
    if network is not None:
        heads[FROZEN_HEAD] = frozen.head
    scores = {name: searches.score(head) for name, head in heads.items()}
    heads[TRAINED] = trained
    if network is not None:  # the extractor now computes features of the trained backbone
        seen = prepare_validation(
            prepared.validation_records, machine=job.machine, extractor=prepared.extractor, watcher=job.watcher
        )
        assert seen is not None
        ungrouped = replace(searches.ungrouped, features=seen.features)
        searches = replace(searches, ungrouped=ungrouped, training=network.features)
    if network is not None or frozen.method not in RIVALS:
        scores[TRAINED] = searches.score(trained)
    found = {name: telling for name, one in scores.items() if (telling := one.telling) is not None}
    if verdict is not None and TRAINED in found and prepared.chooses_by_val(config):
        verdict = judge_by_val(verdict, found, validation, classes=training.classes, seed=config.seed)
    return MethodScores(heads, scores, searches, verdict)


def save_selected(
    job: TrainingJob,
    prepared: PreparedData,
    evaluation: MethodScores,
    *,
    frozen: FrozenEmbedding,
    stage: StageResult | None,
) -> dict[str, Any]:
    """Save the embedding that the verdict exports; returns most of the report."""
    run, config, training = job.run, job.config, prepared.training
    exported = TRAINED if evaluation.verdict is None else evaluation.verdict.exported
    extractor, head, method = prepared.extractor, frozen.head, frozen.method
    network = None if stage is None else stage.report
    if stage is not None and stage.head is not None:
        if exported == TRAINED:
            head, method = stage.head, config.loss.method
        else:
            network = {**stage.report, "selected": False, "left_by": "verdict"}
            backbone = load_backbone(config.backbone, config.weights, seed=config.seed, side=config.input.crop)
            extractor = open_extractor(backbone, config.input, machine=job.machine)
    if exported in evaluation.heads and exported not in (FROZEN_HEAD, TRAINED):
        head, method = evaluation.heads[exported], exported
    is_finetuned = network is not None and network["selected"]
    if is_finetuned:
        run.save_backbone(extractor.backbone, is_finetuned=True)
    else:
        (run.path / FINETUNED).unlink(missing_ok=True)  # left by an interrupted run
    if method not in UNTRAINED_METHODS and not is_finetuned:
        width = min(UNTRAINED_DIM, count_directions(training.features))
        run.save_module("untrained", fit_untrained("pca", training.features, embedding_dim=width))
    sizes = {"class_count": len(training.classes), "embedding_dim": head.embedding_dim}
    run.save_module("head", head, method=method, **sizes)  # its presence says that training is finished
    wrong = sum(image.given != image.used for image in training.images)
    noise = {"samples": len(training.images), "wrong": wrong, "rate": wrong / len(training.images)}
    copies = None
    if config.copy_head:  # on the features of the exported backbone
        with job.measure(COPY_PHASE):
            copy_head, copies = train_copy_head(job, training.images, training.copies, extractor=extractor)
            run.save_module("copy_head", copy_head, **{name: copies[name] for name in COPY_STATE})
    return {
        "run": str(run.path),
        "copy_head": copies,
        "phases": {name: {"seconds": seconds} for name, seconds in job.seconds.items()},
        **evaluation.to_json(exported, method=method),
        "images": len(training.images),
        "trained_on": frozen.trained_on,
        "classes": len(training.classes),
        "skipped": run.count_skipped(),
        "noise": None if config.data.noise is None else noise,
        "method": method,
        "embedding_dim": head.embedding_dim,
        "finetuning": network,
    }
