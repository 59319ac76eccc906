"""Data of a run: images with their labels, fixed once, the backbone, and the features."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch

from index.arrays import Floats, Ids
from index.errors import InputError, RunError
from index.images.image_files import read_image
from index.images.preprocess import resize_image
from index.labels.noise_model import LabelPrior
from index.sources.table_rows import USUAL
from index.text import printable_path
from training.backbone.backbones import Backbone, load_backbone, require_input_size, with_features
from training.backbone.extract import ExtractedSet, Extractor, FeatureStore
from training.confidence.duplicates import MOST_COMPARED, find_duplicates
from training.data.datasets import (
    Dataset,
    Record,
    cap_classes,
    check_trainable,
    keep_usable_classes,
    list_dataset,
    list_splits,
    require_outside,
    require_two_classes,
)
from training.data.label_noise import add_label_noise
from training.data.protocols import load_protocol
from training.head.untrained import LabelledFeatures
from training.network.decoded_images import MappedArray, place_decoded, require_room
from training.options.backbone_libraries import preprocess_for
from training.options.config import InputConfig, TrainConfig
from training.options.machine import Machine
from training.run.copy_stage import MIN_COPY_HEAD_IMAGES
from training.run.distributed import require_same_files
from training.run.features import extract_together
from training.run.finetuning.budget import may_sample
from training.run.finetuning.inputs import plan_blocks
from training.run.phases import TrainingJob, Watcher
from training.run.run_folder import PARITY_IMAGES, LabelledImage
from training.run.searches import KnownImages, find_holdout_groups, read_file_sources

logger = logging.getLogger(__name__)


def list_data(data: Path, val: Path | None, *, config: TrainConfig) -> tuple[Dataset, Dataset | None]:
    """Training images, capped by class, and validation images; nothing is decoded yet.

    A split column or a benchmark protocol names both; `val` replaces the validation part.
    """
    validation: Dataset | None = None
    columns = config.data.columns
    if data.is_dir() and columns != USUAL:
        raise InputError(
            f"{printable_path(data)}: a folder or gallery, of which no columns can be named: --path-column and "
            "--label-column go with a CSV or Parquet file"
        )
    if config.data.split_column is not None:
        dataset, held_out = list_splits(data, columns=columns, split_column=config.data.split_column)
        if held_out is not None:
            if val is not None:
                raise InputError(
                    f"{printable_path(data)}: its column {config.data.split_column!r} says what validates, and so "
                    f"does --val {printable_path(val)}: leave one of them out"
                )
            validation = _require_pair(held_out, of=data)
    elif config.data.protocol == "folder":
        dataset = list_dataset(data, columns=columns)
    else:
        dataset, validation = load_protocol(config.data.protocol, data)
    records = cap_classes(dataset.records, max_per_class=config.data.max_per_class, seed=config.seed)
    check_trainable(records, data=data)
    if val is not None:
        if val.resolve() == data.resolve():
            logger.warning("--val is the training data itself: its Recall@K will not tell how the model generalises")
        validation = _require_pair(list_dataset(val, columns=columns), of=val)
        seen = {record.path for record in records} & {record.path for record in validation.records}
        if seen and val.resolve() != data.resolve():
            logger.warning(
                "%d of the %d images of --val are trained on: its Recall@K will not tell how the model generalises",
                len(seen),
                len(validation.records),
            )
    return Dataset(tuple(records), dataset.skipped), validation


def _require_pair(validation: Dataset, *, of: Path) -> Dataset:
    labels = [record.label for record in validation.records]
    if not keep_usable_classes(labels)[0].any():
        raise InputError("no validation class has two images; Recall@K needs one", at=of)
    return validation


class TrainingSet:
    """Training images with features and labels; near-duplicates and groups are computed on demand.

    Attributes:
        classes: the C given labels, sorted.
        on_device: (N, F) float32 features.
        labels: (N,) int64 used labels in 0..C-1, on the same device.
    """

    def __init__(self, images: Sequence[LabelledImage], features: torch.Tensor, *, records: Sequence[Record]) -> None:
        self.images, self.on_device, self._records = images, features, records
        self.classes = sorted({image.given for image in images})
        numbers = {label: number for number, label in enumerate(self.classes)}
        self.labels = torch.tensor([numbers[image.used] for image in images], device=features.device)

    def take(self, rows: Ids) -> "TrainingSet":
        """Some of the images, with the numbers of all classes."""
        part = TrainingSet([self.images[row] for row in rows], self.on_device[rows], records=self._records)
        part.classes, part.labels = self.classes, self.labels[rows]
        return part

    @cached_property
    def features(self) -> Floats:
        """(N, F) float32."""
        return self.on_device.cpu().numpy()

    @cached_property
    def prior(self) -> LabelPrior | None:
        """Stated probabilities that labels are right; None with simulated noise, or if no label has one."""
        images = self.images
        if all(image.p_right is None for image in images) or any(image.given != image.used for image in images):
            return None
        numbers = {label: number for number, label in enumerate(self.classes)}
        labels = self.labels.cpu().numpy()
        before = [numbers.get(image.before or "", label) for image, label in zip(images, labels.tolist(), strict=True)]
        p_right = [np.nan if image.p_right is None else image.p_right for image in images]
        return LabelPrior(np.array(p_right), np.array(before, dtype=np.int64))

    @cached_property
    def known(self) -> KnownImages:
        """The images for searches, by given labels; opens every file."""
        groups = {record.path: record.group for record in self._records}
        paths, hashes = [image.path for image in self.images], [image.sha256 for image in self.images]
        group_sources = read_file_sources(paths, groups=[groups.get(path) for path in paths], hashes=hashes)
        return KnownImages(self.features, [image.given for image in self.images], hashes, group_sources)

    @cached_property
    def copies(self) -> Ids:
        """(N,) int64, equal for near-duplicates."""
        hashes = [image.sha256 for image in self.images]
        if len(hashes) > MOST_COMPARED:
            return np.unique(hashes, return_inverse=True)[1].astype(np.int64)
        return find_duplicates(self.features, self.labels.cpu().numpy(), hashes=hashes).groups

    @cached_property
    def groups(self) -> Ids | None:
        """(N,) int64, equal for photos of one group, near-duplicates among them; None without groups."""
        return find_holdout_groups(self.known, copies=self.copies)

    def labelled(self, weights: Floats | None, *, reads_labels: bool = True) -> LabelledFeatures:
        """Input of the methods in closed form, with (N,) weights that are known already."""
        labels = self.labels.cpu().numpy()
        groups = self.copies if weights is None and reads_labels else None
        return LabelledFeatures(self.features, labels, groups, weights=weights)


@dataclass(frozen=True, slots=True)
class PreparedData:
    """Training and validation images with features, and their extractor.

    `decoding` is the place of the decoded images; None where the backbone stays frozen.
    """

    validation_records: Dataset | None
    training: TrainingSet
    validation: KnownImages | None
    extractor: Extractor
    decoding: MappedArray | None

    def chooses_by_val(self, config: TrainConfig) -> bool:
        """Whether --val selects the exported embedding; the test part of a benchmark only reports."""
        return self.validation is not None and config.data.protocol == "folder"


def list_inputs(
    data: Path, val: Path | None, *, out: Path, config: TrainConfig, machine: Machine, is_new: bool
) -> tuple[Dataset, Dataset | None, Backbone]:
    """Images, validation images and backbone; invalid input is refused here, before the run folder exists."""
    require_outside(out, data=data, flag="--out")
    require_outside(machine.cache, data=data, flag="--cache")
    dataset, validation = list_data(data, val, config=config)
    require_same_files(dataset.records + (() if validation is None else validation.records))
    sizes = config.input
    backbone = load_backbone(config.backbone, config.weights, seed=config.seed, side=sizes.crop)
    require_input_size(backbone, sizes.crop)
    seeing = with_features(backbone, view=sizes.view, pooling=sizes.pooling, side=sizes.crop)
    if config.finetuning.trains:
        if config.finetuning.image_size is not None:
            require_input_size(backbone, config.finetuning.image_size, flag="--image-size")
        plan_blocks(backbone, config, side=sizes.crop)
    if is_new:
        require_directions(len(dataset.records), seeing.feature_dim, config=config)
    return dataset, validation, backbone


def require_directions(count: int, feature_dim: int, *, config: TrainConfig) -> None:
    """Refuse a width larger than the data allow, for methods in closed form, --init wccn and --select auto."""
    method = config.loss.method
    if config.head.embedding_dim is None or method == "raw":
        return
    if not config.loss.trains:
        what, instead = f"--method {method}", "--method raw"
    elif config.head.init == "wccn":
        what, instead = "--init wccn", "--init random"
    elif config.select == "auto":
        what, instead = "--select auto", "--select trained"
    else:
        return
    spanned = max(0, min(feature_dim, count - 1))
    if config.head.width > spanned:
        raise InputError(
            f"--embedding-dim {config.head.width} exceeds what {what} can give: {count} images of "
            f"{feature_dim} features span at most {spanned} directions; lower it, or choose {instead}"
        )


def prepare_data(
    job: TrainingJob, dataset: Dataset, validation_records: Dataset | None, backbone: Backbone, *, data: Path
) -> PreparedData:
    """Features of all images, and the saved backbone."""
    config, machine = job.config, job.machine
    extractor = open_extractor(backbone, config.input, machine=machine)
    job.run.fix_features(extractor.describe())
    with job.measure("features"):
        training = prepare_training(job, dataset, data=data, extractor=extractor)
        hashes, decoding = [image.sha256 for image in training.images], None
        require_directions(*training.on_device.shape, config=config)  # now of the images that are usable
        if config.copy_head and (count := len(set(hashes))) < MIN_COPY_HEAD_IMAGES:
            raise InputError(
                f"--copy-head needs at least {MIN_COPY_HEAD_IMAGES} different usable images, got {count}: leave it out"
            )
        if config.finetuning.trains:
            decoding = place_decoded(hashes, extractor.preprocess, cache=machine.cache)
            if not may_sample(job, len(hashes)):
                require_room(decoding)
        validation = prepare_validation(validation_records, machine=machine, extractor=extractor, watcher=job.watcher)
    job.run.save_backbone(extractor.backbone)
    return PreparedData(validation_records, training, validation, extractor, decoding)


def prepare_training(job: TrainingJob, dataset: Dataset, *, data: Path, extractor: Extractor) -> TrainingSet:
    """Training set of a run; unusable files go to skipped.csv."""
    run, config, machine = job.run, job.config, job.machine
    images = run.read_labels()
    paths = [record.path for record in dataset.records] if images is None else [image.path for image in images]
    store, extracted = extract_together(
        paths, extractor=extractor, machine=machine, progress=partial(job.watcher.on_images, "features")
    )
    if images is None:
        images = _choose_images(dataset.records, extracted, store=store, data=data, config=config)
        chosen = np.linspace(0, len(images) - 1, num=min(PARITY_IMAGES, len(images))).round().astype(int)
        sizes = extractor.preprocess
        run.save_parity_images(
            [resize_image(read_image(images[i].path, target_side=sizes.resize), sizes) for i in chosen]
        )
        run.write_skipped([*dataset.skipped, *extracted.skipped])
        run.write_labels(images)  # last: its presence says that the choice is made
    elif extracted.hashes != tuple(image.sha256 for image in images):
        known = set(extracted.hashes)
        changed = next((image.path for image in images if image.sha256 not in known), images[0].path)
        raise RunError(
            f"{run.path}: images have changed or vanished since the run began, the first is "
            f"{printable_path(changed)}; put them back, or start a new run"
        )
    features = torch.from_numpy(store.load([image.sha256 for image in images])[:, 0]).to(machine.device)
    return TrainingSet(images, features, records=dataset.records)


def _choose_images(
    records: Sequence[Record], extracted: ExtractedSet, *, store: FeatureStore, data: Path, config: TrainConfig
) -> list[LabelledImage]:
    """Usable images of classes with two or more, with the labels that train: given ones, or with simulated noise."""
    usable = [(records[row], sha256) for row, sha256 in zip(extracted.rows, extracted.hashes, strict=True)]
    given = [record.label for record, _ in usable]
    require_two_classes(given, data=data)
    keep, dropped = keep_usable_classes(given)
    for label in dropped:
        logger.warning("class %r has fewer than two usable images and is left out", label)
    usable = [one for one, kept in zip(usable, keep, strict=True) if kept]
    used = given = [record.label for record, _ in usable]
    if (noise := config.data.noise) is not None:
        classes = sorted(set(given))
        numbers = {label: number for number, label in enumerate(classes)}
        reads_features = noise.kind in ("nearest-class", "small-cluster")
        wrong = add_label_noise(
            np.array([numbers[label] for label in given], dtype=np.int64),
            noise=noise,
            class_count=len(classes),
            features=store.load([sha256 for _, sha256 in usable])[:, 0] if reads_features else None,
            seed=config.seed if config.data.label_noise_seed is None else config.data.label_noise_seed,
        )
        used = [classes[number] for number in wrong]
    return [
        LabelledImage(record.path, sha256, record.label, label, record.p_right, record.before)
        for (record, sha256), label in zip(usable, used, strict=True)
    ]


def open_extractor(network: Backbone, sizes: InputConfig, *, machine: Machine) -> Extractor:
    """Extractor of the features of a network, with the view and pooling of the options."""
    preprocess = preprocess_for(network.name, resize=sizes.resize, crop=sizes.crop, view=sizes.view)
    seeing = with_features(network, view=sizes.view, pooling=sizes.pooling, side=sizes.crop)
    return Extractor(seeing, preprocess, device=machine.device, precision=machine.precision)


def prepare_validation(
    validation: Dataset | None, *, machine: Machine, extractor: Extractor, watcher: Watcher
) -> KnownImages | None:
    """Validation images with features and group sources; unreadable ones are left out."""
    if validation is None:
        return None
    records = validation.records
    store, extracted = extract_together(
        [record.path for record in records],
        extractor=extractor,
        machine=machine,
        progress=partial(watcher.on_images, "validation features"),
    )
    if not extracted.hashes:
        raise InputError(f"none of the {len(records)} validation images is readable")
    if extracted.skipped:
        logger.warning("%d validation images cannot be used and are left out", len(extracted.skipped))
    usable = [records[row] for row in extracted.rows]
    names = [record.label for record in usable]
    if not keep_usable_classes(names)[0].any():
        raise InputError("no validation class has two readable images; Recall@K needs one")
    group_sources = read_file_sources(
        [record.path for record in usable], groups=[record.group for record in usable], hashes=extracted.hashes
    )
    gallery = None if validation.is_gallery is None else np.array(validation.is_gallery)[extracted.rows]
    features = store.load(extracted.hashes)[:, 0]
    known = KnownImages(features, names, extracted.hashes, group_sources, gallery, validation.ks)
    if gallery is not None and not np.isin(known.numbers[~gallery], known.numbers[gallery]).any():
        raise InputError("Recall@K needs a query with an image of its class in the gallery; no readable one has one")
    return known
