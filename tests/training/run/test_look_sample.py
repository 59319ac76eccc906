"""What a look looks at: whole classes, as training would label them, each image extracted once a view."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.training.conftest import make_config, make_machine
from training.backbone.backbones import load_backbone
from training.backbone.extract import extract_features, open_store
from training.data.datasets import Record, list_dataset
from training.run.feature_choice import Candidate, list_candidates
from training.run.look_sample import LEAST_CLASSES, MOST_IMAGES, Sample, SampleReader, draw_sample
from training.run.phases import Watcher
from training.run.prepare import label_images, open_extractor

OPEN = {"recipe": "default", "trial": True, "view": "auto", "pooling": "auto"}


def read(
    records: tuple[Record, ...], cache: Path, *, images: int = 1000, watcher: Watcher | None = None, **changes: Any
) -> tuple[SampleReader, Sample]:
    config = make_config(**(OPEN | changes))
    network = load_backbone(config.backbone, "none")
    candidates = list_candidates(network, config.input, embedding_dim=8)
    reader = SampleReader(
        network, candidates, config=config, machine=make_machine(cache), watcher=watcher or Watcher()
    )
    return reader, reader.read(records, images=images)


def test_a_sample_is_of_whole_classes_and_no_larger_than_it_must() -> None:
    labels = [f"class {number % 400}" for number in range(3200)] + ["alone"]
    rows = draw_sample(labels, images=MOST_IMAGES, seed=0)
    drawn = Counter(labels[row] for row in rows)
    assert MOST_IMAGES <= len(rows) < MOST_IMAGES + 8
    assert set(drawn.values()) == {8}
    assert (np.diff(rows) > 0).all()
    assert (
        rows.tolist()
        == draw_sample(labels, images=MOST_IMAGES, seed=0).tolist()
        != draw_sample(labels, images=MOST_IMAGES, seed=1).tolist()
    )


def test_large_classes_give_some_of_their_images_so_that_many_classes_are_in() -> None:
    labels = np.repeat(np.arange(2 * LEAST_CLASSES), 40).astype(str).tolist()
    drawn = Counter(labels[row] for row in draw_sample(labels, images=MOST_IMAGES, seed=0))
    assert len(drawn) == LEAST_CLASSES
    assert set(drawn.values()) == {MOST_IMAGES // LEAST_CLASSES}
    few = ["a"] * 700 + ["b"] * 600 + ["c"]
    assert Counter(few[row] for row in draw_sample(few, images=MOST_IMAGES, seed=0)) == {"a": 500, "b": 500}
    assert draw_sample(["a", "b"], images=MOST_IMAGES, seed=0).tolist() == []


def test_what_is_kept_is_what_the_run_would_extract(pictures: Path, tmp_path: Path) -> None:
    records = list_dataset(pictures).records
    reader, sample = read(records, tmp_path / "cache")
    (chosen,) = (one for one in sample.features if (one.view, one.pooling) == ("whole", "layers"))
    assert sample.features[chosen].shape == (len(records), chosen.feature_dim)
    reader.keep(sample, chosen)
    network, sizes = load_backbone("squeezenet1_1", "none"), make_config().input
    expected, found = (
        open_extractor(network, sizes, view="whole", pooling="layers", machine=make_machine(cache))
        for cache in (tmp_path / "fresh", tmp_path / "cache")
    )
    for cache, extractor, computed in (("cache", found, 0), ("fresh", expected, len(records))):
        store = open_store(tmp_path / cache, extractor, views=1)
        extracted = extract_features(
            [record.path for record in records], store=store, extractor=extractor, views=1, workers=1
        )
        assert extracted.computed == computed
        np.testing.assert_array_equal(store.load(sample.hashes)[:, 0], sample.features[chosen])


def test_both_views_are_the_mean_of_the_unit_features_of_each(pictures: Path, cache: Path) -> None:
    _, sample = read(list_dataset(pictures).records, cache, pooling="own", embedding_cost=2)
    crop, whole, both = (sample.features[Candidate(view, "own", 512)] for view in ("crop", "whole", "both"))
    units = [view / np.linalg.norm(view, axis=1, keepdims=True) for view in (crop, whole)]
    np.testing.assert_allclose(both, np.mean(units, axis=0), atol=1e-6)
    assert not np.allclose(crop, whole)


@pytest.mark.parametrize("noise", ["uniform:0.5", "nearest-class:0.5"])
def test_labels_are_as_wrong_as_those_that_will_train(pictures: Path, cache: Path, noise: str) -> None:
    records = list_dataset(pictures).records
    _, sample = read(records, cache, label_noise=noise)
    given = [record.label for record in records]
    config = make_config(label_noise=noise)
    used = label_images(given, features=lambda: sample.features[Candidate("crop", "own", 512)], config=config)
    assert sample.labels.tolist() == np.unique(used, return_inverse=True)[1].tolist()
    assert sum(one != other for one, other in zip(given, used, strict=True)) == len(given) // 2


def test_an_image_that_cannot_be_read_is_left_out_of_every_view(pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    first, *others = list_dataset(pictures).records
    records = (Record(tmp_path / "broken.jpg", first.label), *others)
    told: list[tuple[int, int]] = []
    watcher = Watcher(on_images=lambda _, done, total: told.append((done, total)))
    reader, sample = read(records, tmp_path / "cache", images=24, watcher=watcher)
    assert [reader.afford(views=views) for views in (1990, 2000, 30_000)] == [0, 100, 1000], (
        "a tenth of two views each"
    )
    assert len(sample.records) == len(sample.labels) == len(set(sample.hashes))
    assert {len(features) for features in sample.features.values()} == {len(sample.labels)}
    assert told[-1] == (48, 48), "two views of the 24 that were drawn"
    assert tmp_path / "broken.jpg" not in {record.path for record in sample.records}
