"""Labels that should be split: two classes under one label are found, clean classes are not."""

import numpy as np

from index.labels.list_issues import find_split_classes


def draw(*, classes: int = 12, images: int = 20, width: int = 32) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    labels = np.arange(classes).repeat(images)
    centres = random.normal(size=(classes, width))
    return (centres[labels] + 0.6 * random.normal(size=(len(labels), width))).astype(np.float32), labels


def test_only_a_label_of_two_classes_is_found_by_its_smaller_part() -> None:
    vectors, classes = draw()
    alone = np.arange(len(classes))
    assert not find_split_classes(vectors, classes, alone, count=12).any()
    means = np.stack([vectors[classes == label].mean(axis=0) for label in range(12)])
    far = int((means @ means[0]).argmin())
    smaller = np.flatnonzero(classes == far)[:14]
    kept = np.concatenate([np.flatnonzero(classes != far), smaller])
    labels = np.where(classes == far, 0, classes)[kept]
    found = find_split_classes(vectors[kept], labels, alone[kept], count=12)
    assert set(kept[found]) == set(smaller)
    copies = alone[kept].copy()
    copies[np.isin(kept, smaller)] = -1  # one image, saved often, is no class
    assert not find_split_classes(vectors[kept], labels, copies, count=12).any()
