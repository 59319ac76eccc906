"""Sample of the images for fine-tuning whose time is too short for one epoch of them all, by measured speeds."""

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from index.arrays import Floats, Ids, Labels
from index.images.image_files import read_image
from index.images.preprocess import Pixels, resize_image
from index.threads import map_ahead
from training.backbone.extract import BATCH_IMAGES
from training.confidence.confidences import LabelConfidences, take_rows
from training.head.embedding_heads import ProjectionHead
from training.network.decoded_images import centre_views, draw_views, place_decoded, require_room
from training.options.finetuning import parse_time
from training.run.finetuning.budget import HEADS_AT_END, SAMPLE, may_sample
from training.run.finetuning.inputs import PRECISIONS, build_model, find_precision, plan_blocks, time_step, view_side
from training.run.phases import FINETUNING, TrainingJob, phase_generator
from training.run.prepare import PreparedData

_PASSES = 2.5  # of an image through the whole network, for its cached outputs, evaluations and features at the end
_USABLE = 0.8  # share of the time; searches take the rest
_HEADS = 1 + HEADS_AT_END  # each takes about as long as that of the frozen embedding did
_LEAST = 200  # images; fewer teach nothing, and the budget says which time is needed
_CACHING = 4 / 3  # time of a step with one more forward pass, by --micro-batch-size
_HOUR = 3600
_TOGETHER = 4  # images of a class that come before the next class's
_DOUBTFUL = 0.5  # posterior of the given label, below which an image comes after the others of its class


def take_sample(
    job: TrainingJob, prepared: PreparedData, confidences: LabelConfidences | None, *, width: int
) -> tuple[PreparedData, LabelConfidences | None]:
    """The data and confidences of the images for which the time budget suffices, with the numbers of all classes.

    A resumed run takes the images of its beginning, whatever trains it.
    """
    training = prepared.training
    if not may_sample(job, len(training.images)):
        return prepared, confidences
    decided = job.run.keep_json(SAMPLE, partial(decide_sample, job, prepared, confidences, width=width))
    if decided["rows"] is None:
        assert prepared.decoding is not None
        require_room(prepared.decoding)
        return prepared, confidences
    rows = np.array(decided["rows"])
    training = training.take(rows)
    decoding = place_decoded(
        [image.sha256 for image in training.images], prepared.extractor.preprocess, cache=job.machine.cache
    )
    if confidences is not None:
        wanted = torch.from_numpy(rows).to(confidences.own.device)
        by_class = take_rows(confidences.by_class, wanted)
        confidences = replace(confidences, own=confidences.own[wanted], by_class=by_class)
    return replace(prepared, training=training, decoding=decoding), confidences


def decide_sample(
    job: TrainingJob, prepared: PreparedData, confidences: LabelConfidences | None, *, width: int
) -> dict[str, Any]:
    """Measured seconds, and the rows that train, None for all.

    Tells what the budget can do, and what an hour could.
    """
    training, count = prepared.training, len(prepared.training.images)
    text = job.config.finetuning.limits(count, on_cpu=job.machine.device.type == "cpu")[1]
    assert text is not None
    seconds = measure_seconds(job, prepared, width=width)
    prepared_s = seconds["decoded"] + _PASSES * seconds["evaluated"] + seconds["posteriors"]
    trained_s = seconds["trained"]

    def describe(budget_s: float) -> tuple[int, str]:
        usable_s = max(0.0, _USABLE * budget_s - seconds["heads"])
        fits = int(usable_s / (prepared_s + trained_s))
        if fits < count:
            return fits, f"{fits:,} of {count:,} images ({fits / count:.0%} of an epoch)"
        return fits, f"{(usable_s / count - prepared_s) / trained_s:.1f} epochs of {count:,} images"

    fits, what = describe(parse_time(text))
    note = (
        f"fine-tuning: {1 / trained_s:.0f} images/s train here, {1 / seconds['evaluated']:.0f} are evaluated, "
        f"{1 / seconds['decoded']:.0f} decoded: {text} are enough for {what}"
    )
    if parse_time(text) < _HOUR:
        note += f", an hour for {describe(_HOUR)[1]}"
    if fits >= count or fits < _LEAST:
        job.watcher.on_note(note)
        return seconds | {"rows": None}
    job.watcher.on_note(f"{note}; it takes as many, of all classes alike")
    own = None if confidences is None else confidences.own.cpu().numpy()
    rows = choose_rows(training.labels.cpu().numpy(), own, count=fits, seed=job.config.seed)
    return seconds | {"rows": rows.tolist()}


def choose_rows(labels: Labels, own: Floats | None, *, count: int, seed: int) -> Ids:
    """(count,) ascending rows, balanced over the classes of (N,) labels: some of each class, then some more of each.

    Where a few of each class are too many, classes are drawn. Of a class come first those whose label has a posterior
    `own` (N,) that is not low.
    """
    generator = np.random.default_rng((seed, 2))
    order = generator.permutation(len(labels))
    if own is not None:
        order = order[np.argsort(own[order] < _DOUBTFUL, kind="stable")]
    order = order[np.argsort(labels[order], kind="stable")]
    sizes = np.bincount(labels)
    ranks = np.arange(len(labels)) - np.repeat(sizes.cumsum() - sizes, sizes)
    classes = generator.permutation(len(sizes))[labels[order]]
    return np.sort(order[np.lexsort((ranks, classes, ranks // _TOGETHER))][:count])


def measure_seconds(job: TrainingJob, prepared: PreparedData, *, width: int) -> dict[str, float]:
    """Seconds for an image to be decoded, to train, and to pass the whole network, by some of the images.

    `posteriors` are those of an image for all heads, `heads` the time of their training for any number of images.
    """
    config, extractor, training = job.config, prepared.extractor, prepared.training
    tell = partial(job.watcher.on_images, "measuring speeds")
    tell(0, 3)
    size = min(config.finetuning.batch_size, len(training.images))
    chosen = np.linspace(0, len(training.images) - 1, size).round().astype(int)
    paths, preprocess = [training.images[row].path for row in chosen], extractor.preprocess

    def read(path: Path) -> Pixels:
        return resize_image(read_image(path, target_side=preprocess.resize), preprocess)

    started = time.perf_counter()
    pixels = np.stack(list(map_ahead(read, paths, workers=job.machine.workers, ahead=size)))
    decoded_s = (time.perf_counter() - started) / size
    tell(1, 3)
    some = centre_views(pixels, torch.arange(min(BATCH_IMAGES, size)), crop=preprocess.crop)
    for _ in range(2):  # the first one chooses kernels and takes memory
        started = time.perf_counter()
        extractor.extract(some).cpu()
        evaluated_s = (time.perf_counter() - started) / len(some)
    tell(2, 3)
    side = view_side(extractor.backbone, config)
    head = ProjectionHead(torch.eye(width, training.features.shape[1]), torch.zeros(width))
    blocks = plan_blocks(extractor.backbone, config, side=config.input.crop)
    model = build_model(extractor, head, blocks, config=config)
    model.precision = PRECISIONS[find_precision(job, model, pixels, np.arange(size), side=side)]
    rows = torch.arange(min(size, config.finetuning.images_at_once))
    views = draw_views(pixels, rows, side=side, generator=phase_generator(config.seed, FINETUNING, 0))
    trained_s = time_step(model, views.to(model.head.weight.device)) / len(rows)
    if len(rows) < size:
        trained_s *= _CACHING
    model.requires_grad_(False)
    tell(3, 3)
    posteriors_s, *steps_s = (_HEADS * job.seconds.get(step, 0.0) for step in ("confidence", "projection", "embedding"))
    of_image = {"decoded": decoded_s, "trained": trained_s, "evaluated": evaluated_s}
    return of_image | {"posteriors": posteriors_s / len(training.images), "heads": sum(steps_s)}
