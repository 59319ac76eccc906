"""Holdout evaluation: whether training beats untrained embeddings, on held-out classes and images.

Some classes are held out whole and searched among themselves (unseen classes). Of the other classes some images are
held out and searched among those that train (seen classes). The recipe trains on the rest with several L2-SP weights;
its untrained rivals are fitted to the rest too. Recall@1 compares them by the posteriors of the true class: where many
labels are wrong, the given labels rank methods wrongly. Without posteriors it compares them by the given labels.
A sample of classes and images stands for very many.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array

from index.arrays import Labels
from index.evaluation.comparison import PairedDifference, Scores, paired_bootstrap
from index.progress import Progress, no_progress
from training.confidence.confidences import LabelConfidences
from training.head.embedding_heads import Head
from training.head.untrained import LabelledFeatures, count_directions, fit_rivals
from training.options.config import L2_SP_WEIGHTS, USUAL_L2_SP, TrainConfig
from training.run.fit import HeadPlan, HeadTraining
from training.run.label_confidences import choose_rows, estimate_confidences, known_weights
from training.run.phases import PhaseContext, TrainingJob
from training.run.prepare import PreparedData
from training.run.searches import ValidationSet, embed_features
from training.run.verdict import LEAST_CLASSES, PARTS, QUESTIONS, TRAINED, MethodComparison, Verdict, compare

SAMPLED_IMAGES, SAMPLED_CLASSES = 30_000, 100  # about so many images, of at least so many classes if there are
MANY_CLASSES, FEW_FOLDS = 25, 3
FEWEST_CLASSES = 4  # two to search, and two to train on
IMAGE_SHARE, MIN_CLASS_IMAGES = 0.2, 3
FINETUNING_LEAST_CLASSES, FINETUNING_SHARE = 20, 0.1  # held out of fine-tuning: at least two classes
_STEPS = 1000  # of a fold, for the progress
FINETUNING_MOST = 0.2  # greatest share of images that are held out of fine-tuning: small sets need the others


def sample_images(labels: np.ndarray, *, seed: int) -> np.ndarray:
    """Sorted row numbers of some 30,000 images: of classes drawn until they have as many, each at most a hundredth.

    Fewer than a hundred classes all take part, each with an equal share at most.
    """
    if len(labels) <= SAMPLED_IMAGES:
        return np.arange(len(labels))
    generator = np.random.default_rng((seed, 2))
    classes, class_of, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    most = -(-SAMPLED_IMAGES // min(len(classes), SAMPLED_CLASSES))
    order = generator.permutation(len(classes))
    count = int(np.searchsorted(np.minimum(sizes, most)[order].cumsum(), SAMPLED_IMAGES)) + 1
    by_class = generator.permutation(len(labels))
    by_class = by_class[np.argsort(class_of[by_class], kind="stable")]
    place = np.arange(len(labels)) - np.repeat(sizes.cumsum() - sizes, sizes)  # among the images of its class
    return np.sort(by_class[(place < most) & np.isin(class_of[by_class], order[:count])])


@dataclass(frozen=True, slots=True)
class Split:
    """Row numbers of one fold: training images, images of held-out classes, held-out images of the other classes."""

    train: np.ndarray
    unseen: np.ndarray
    seen: np.ndarray


def split_for_holdout(labels: np.ndarray, *, seed: int, groups: np.ndarray | None = None) -> Iterator[Split]:
    """Folds: fifths of the classes until 25 are held out; fewer than 25 classes all take a turn, in three folds.

    Below four classes only images are held out. Of every training class a fifth of the images is held out, one at
    least, but nothing of a class with fewer than three. Groups are held out whole, at most half of a class's;
    training images of a held-out group are left out. `groups` (N,) int64 are equal for photos of one group; None: every
    photo is one.
    """
    generator = np.random.default_rng(seed)
    classes = generator.permutation(np.unique(labels))
    folds, held_in = FEW_FOLDS, np.arange(len(classes)) % FEW_FOLDS
    if len(classes) >= MANY_CLASSES:
        folds, held_in = -(-MANY_CLASSES // (len(classes) // 5)), np.arange(len(classes)) % 5
    elif len(classes) < FEWEST_CLASSES:
        folds, held_in = 1, np.ones(len(classes), dtype=np.int64)
    elif len(classes) < 2 * FEW_FOLDS:
        folds, held_in = 2, np.arange(len(classes)) % 2
    for fold in range(folds):
        held = classes[held_in == fold]
        yield hold_out(labels, held, share=IMAGE_SHARE, generator=generator, groups=groups, order=classes)


def split_for_finetuning(labels: np.ndarray, *, seed: int, groups: np.ndarray | None = None) -> Split:
    """Split for fine-tuning: a tenth of the classes if there are 20 or more, and a tenth of the others' images.

    Groups are held out whole. At most a fifth of all images does not train: classes and groups that would exceed it are
    skipped, half of it is for classes. If nothing is small enough, the split is that of `hold_out`, without the bound.
    """
    generator = np.random.default_rng((seed, 1))  # not the classes that the holdout evaluation holds out first
    classes = generator.permutation(np.unique(labels))
    count = len(classes) // 10 if len(classes) >= FINETUNING_LEAST_CLASSES else 0
    group_of = np.arange(len(labels)) if groups is None else np.unique(groups, return_inverse=True)[1]
    costs = np.bincount(group_of)  # images that cannot train with the group held out; 0 once it is
    most = int(FINETUNING_MOST * len(labels))
    spent, unseen, seen = 0, list[int](), np.zeros(len(labels), dtype=bool)
    for label in classes:
        own = np.unique(group_of[labels == label])
        if len(unseen) < count and spent + (cost := costs[own].sum()) <= most / 2:
            unseen.append(label)
            spent, costs[own] = spent + cost, 0
    for label in classes[~np.isin(classes, unseen)]:
        rows = np.flatnonzero(labels == label)
        own, sizes = np.unique(group_of[rows], return_counts=True)
        taken, wanted = 0, max(1, int(FINETUNING_SHARE * len(rows)))
        order = generator.permutation(len(own))
        order = order[np.argsort(np.where(sizes > wanted, sizes, 0)[order], kind="stable")]  # large ones last, by size
        for number in order[: len(own) // 2] if len(rows) >= MIN_CLASS_IMAGES else ():
            fits = taken == 0 or taken + sizes[number] <= wanted
            if fits and spent + (cost := costs[own[number]]) <= most:
                seen[rows[group_of[rows] == own[number]]] = True
                taken, spent, costs[own[number]] = taken + sizes[number], spent + cost, 0
    if not unseen and not seen.any():
        return hold_out(
            labels, classes[:count], share=FINETUNING_SHARE, generator=generator, groups=groups, order=classes
        )
    is_unseen = np.isin(labels, unseen)
    return Split(*(np.flatnonzero(mask) for mask in (costs[group_of] > 0, is_unseen, seen)))


def hold_out(
    labels: np.ndarray,
    classes: np.ndarray,
    *,
    share: float,
    generator: np.random.Generator,
    groups: np.ndarray | None,
    order: np.ndarray,
) -> Split:
    """Hold out all images of some classes, and a share of those of every other class, in `order`."""
    groups = np.arange(len(labels)) if groups is None else groups
    unseen = np.isin(labels, classes)
    seen = np.zeros(len(labels), dtype=bool)
    for label in order[~np.isin(order, classes)]:
        rows = np.flatnonzero(labels == label)
        numbers, sizes = np.unique(groups[rows], return_counts=True)
        order_of_groups = generator.permutation(len(numbers))
        if len(rows) >= MIN_CLASS_IMAGES:
            wanted = max(1, int(share * len(rows)))
            enough = int(np.searchsorted(sizes[order_of_groups].cumsum(), wanted)) + 1
            chosen = numbers[order_of_groups[: min(enough, len(numbers) // 2)]]
            seen[rows[np.isin(groups[rows], chosen)]] = True
    train = ~np.isin(groups, groups[unseen | seen])
    return Split(*(np.flatnonzero(mask) for mask in (train, unseen, seen)))


def evaluate_run_holdout(
    job: TrainingJob, prepared: PreparedData, confidences: LabelConfidences | None
) -> dict[str, Any] | None:
    """Holdout evaluation of a run, as in its report; kept for a resume. None where options or data do not allow it."""
    config, training = job.config, prepared.training
    if not config.holdout or not config.loss.trains:
        return None
    with job.measure("holdout"):
        holdout = job.run.keep_json(
            "holdout.json",
            lambda: evaluate_holdout(
                LabelledFeatures(training.features, training.labels.cpu().numpy(), training.copies, training.groups),
                config=config,
                device=job.machine.device,
                posteriors=None if confidences is None else confidences.posteriors(),
                progress=partial(job.watcher.on_images, "holdout"),
            ),
        )
    job.watcher.on_holdout(holdout)
    return holdout


def verdict_on_holdout(config: TrainConfig, holdout: Mapping[str, Any] | None) -> Verdict | None:
    """Verdict of the holdout evaluation on the head; None for a method without training."""
    if not config.loss.trains:
        return None
    unmeasured = "the data has too few classes or photos to hold some out"
    if holdout is None:
        unmeasured = "nothing was held out (--no-holdout)"
    answers = {
        question: MethodComparison(**holdout[part]) for question, part in PARTS.items() if holdout and holdout[part]
    }
    return Verdict(config.for_, answers, unmeasured, chooses=config.select == "auto")


def plan_fold_searches(
    data: LabelledFeatures, split: Split, *, posteriors: csr_array | None
) -> dict[str, ValidationSet]:
    """Searches of a fold, by part; without parts in which nothing can be found."""

    def search(rows: np.ndarray, is_gallery: np.ndarray | None = None) -> ValidationSet:
        groups = None if data.groups is None else data.groups[rows]
        return ValidationSet(
            data.features[rows],
            data.labels[rows],
            is_gallery,
            ks=(1,),
            groups=groups,
            posteriors=None if posteriors is None else posteriors[rows],
        )

    known = np.concatenate([split.train, split.seen])
    parts = {"unseen": search(split.unseen), "seen": search(known, np.arange(len(known)) < len(split.train))}
    return {part: found for part, found in parts.items() if found.can_find()}


def evaluate_holdout(
    data: LabelledFeatures,
    *,
    config: TrainConfig,
    device: torch.device,
    posteriors: csr_array | None = None,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Train the recipe on parts of the data and search the rest; folds with too few images are left out.

    Returns JSON values: how many `images` took part; a comparison of `unseen` and of `seen` classes, None for a part
    with too little data; the selected `l2_sp`, and the mean Recall@1 of both parts by L2-SP weight where several were
    compared.

    With (N, C) posteriors of the true class, a hit counts as the probability that query and first neighbour are of one
    class; None: by the labels.
    """
    if len(sampled := sample_images(data.labels, seed=config.seed)) < len(data.labels):
        data, posteriors = data.take(sampled), None if posteriors is None else posteriors[sampled]
    splits = list(split_for_holdout(data.labels, seed=config.seed, groups=data.groups))
    hits: dict[str, _Hits] = {part: _Hits() for part in QUESTIONS}
    l2_sp_recall, chosen = dict[float, float](), config.head.l2_sp
    weights: Sequence[float] = L2_SP_WEIGHTS if chosen is None else [chosen]
    has_many = len(np.unique(data.labels)) >= MANY_CLASSES
    for number, split in enumerate(splits):  # the first fold of many classes takes the longest

        def tell(done: int, count: int, before: int = _STEPS * number) -> None:
            progress(before + _STEPS * done // count, _STEPS * len(splits))

        searched = plan_fold_searches(data, split, posteriors=posteriors)
        heads: Mapping[str, Head] = {}
        if searched and len(np.unique(data.labels[split.train])) > 1:
            plans = [HeadPlan(config.head.width, l2_sp) for l2_sp in weights]
            heads = fit_heads(data.take(split.train), plans, config=config, device=device, progress=tell)
        for (part, validation), (name, head) in itertools.product(searched.items(), heads.items()):
            hits[part].add(name, validation, head)
        tell(1, 1)
        # Of many classes the first fold selects the L2-SP weight; of few all of them do, and cost little.
        if not l2_sp_recall and (has_many or number == len(splits) - 1):
            l2_sp_recall, chosen = _choose_l2_sp(hits, config=config)
            weights = weights if chosen is None else [chosen]
    parts = sum(bool(found.by_method) for found in hits.values())
    compared = {part: found.compare(chosen, seed=config.seed, parts=parts) for part, found in hits.items()}
    return {
        "folds": len(splits),
        "images": len(data.labels),
        **{part: None if one is None else asdict(one) for part, one in compared.items()},
        "l2_sp_recall": {f"{l2_sp:g}": recall for l2_sp, recall in l2_sp_recall.items()},
        "l2_sp": chosen,
    }


def fit_heads(
    images: LabelledFeatures,
    plans: Sequence[HeadPlan],
    *,
    config: TrainConfig,
    device: torch.device,
    rivals: bool = True,
    progress: Progress = no_progress,
) -> dict[str, Head]:
    """Heads trained by each plan, and `rivals`; empty where the images span no direction."""
    features = torch.from_numpy(images.features).to(device)
    given = torch.from_numpy(images.labels).to(device)
    copies = None if images.copies is None else torch.from_numpy(images.copies).to(device)
    context = PhaseContext(seed=config.seed, device=device, checkpoint=None)
    count, confidences = int(images.labels.max()) + 1, None
    if config.needs_confidences:
        confidences = estimate_confidences(
            features,
            given,
            class_count=count,
            config=config,
            context=context,
            groups=copies,
            progress=lambda done, total: progress(done, total * (1 + len(plans))),
        )
    trusted = choose_rows(confidences, config=config)
    width = count_directions(images.features if trusted is None else images.features[trusted.numpy()])
    if width == 0:
        return {}
    heads: dict[str, Head] = {}
    for plan in plans:
        own = replace(plan, width=min(width, plan.width)) if config.head.init == "wccn" else plan
        training = HeadTraining(features, given, count, config, own, context, confidences, rows=trusted)
        heads[_name_l2_sp(plan.l2_sp)] = training.train().cpu()
        progress(1 + len(heads), 1 + len(plans))
    if not rivals:
        return heads
    weights = known_weights(confidences, config=config)
    return {**heads, **fit_rivals(replace(images, weights=weights), embedding_dim=min(width, plans[0].width))}


def _name_l2_sp(l2_sp: float) -> str:
    return f"{TRAINED}, L2-SP {l2_sp:g}"


def _choose_l2_sp(hits: "Mapping[str, _Hits]", *, config: TrainConfig) -> tuple[dict[float, float], float | None]:
    """Mean Recall@1 of both parts by L2-SP weight, and the selected weight.

    That is `USUAL_L2_SP`, or the best where it clearly leads. On fewer classes than `LEAST_CLASSES` in a part nothing
    leads clearly.
    """
    parts = [part for part in hits.values() if part.by_method]
    if config.head.l2_sp is not None or not parts:
        return {}, config.head.l2_sp
    names = {l2_sp: _name_l2_sp(l2_sp) for l2_sp in L2_SP_WEIGHTS}
    found = [part.recall() for part in parts]
    means = {l2_sp: float(np.mean([part[name] for part in found])) for l2_sp, name in names.items()}
    best = max(means, key=lambda l2_sp: (means[l2_sp], l2_sp))
    leads = [part.lead(names[best], names[USUAL_L2_SP], seed=config.seed) for part in parts]
    # Both parts together: their mean lead against what chance makes of it, half an interval of 95 %.
    chance = float(np.sqrt(np.sum([(lead.high - lead.low) ** 2 for lead in leads]))) / 2
    has_classes = min(part.classes for part in parts) >= LEAST_CLASSES
    is_clear = has_classes and sum(lead.mean for lead in leads) > chance
    return means, best if is_clear else USUAL_L2_SP


class _Hits:
    """Hits by method in one part, over the folds, with the queries' classes."""

    def __init__(self) -> None:
        self.by_method: dict[str, list[Scores]] = {}
        self._labels: list[Labels] = []

    def add(self, name: str, validation: ValidationSet, head: Head) -> None:
        found = validation.score(embed_features(head, validation.features))
        if name == "raw":  # every fold has raw features
            self._labels.append(found.labels)
        self.by_method.setdefault(name, []).append(found.hits[1])

    @property
    def classes(self) -> int:
        """Number of classes of the queries."""
        return len(np.unique(np.concatenate(self._labels)))

    def recall(self) -> dict[str, float]:
        """Recall@1 by method."""
        return {name: float(np.concatenate(parts).mean()) for name, parts in self.by_method.items()}

    def lead(self, name: str, over: str, *, seed: int) -> PairedDifference:
        """Difference in Recall@1 of two methods, with an interval over classes."""
        first, second = (np.concatenate(self.by_method[method]) for method in (name, over))
        return paired_bootstrap(first, second, seed=seed, clusters=np.concatenate(self._labels))

    def compare(self, l2_sp: float | None, *, seed: int, parts: int) -> MethodComparison | None:
        """MethodComparison over all folds' queries; None without any."""
        if not self.by_method:
            return None
        names = {_name_l2_sp(l2_sp): TRAINED} if l2_sp is not None else {}
        joined = {names.get(name, name): np.concatenate(parts) for name, parts in self.by_method.items()}
        joined = {name: found for name, found in joined.items() if not name.startswith(f"{TRAINED}, ")}
        return compare(joined, np.concatenate(self._labels), seed=seed, parts=parts)
