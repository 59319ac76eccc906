from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from index.errors import InputError, UnknownImageError
from index.gallery import sampling
from index.gallery.gallery import Gallery
from index.gallery.sampling import _choose_far, read_sample, sample_images
from tests.conftest import draw_folder
from tests.index.galleries import build


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Gallery:
    """Fifteen images of three classes."""
    folder = tmp_path_factory.mktemp("sampled")
    draw_folder(folder / "images")
    build(folder / "images", folder / "gallery", tiny_model)
    return Gallery.open(folder / "gallery")


def labels_of(gallery: Gallery, ids: list[int]) -> Counter[str | None]:
    return Counter(row.label for row in gallery.rows(ids))


@pytest.mark.parametrize("how", ["diverse", "typical", "random"])
def test_a_sample_has_its_size_and_no_more_of_a_label_than_allowed(gallery: Gallery, how: str) -> None:
    ids = gallery.ids
    both = sample_images(gallery, ids, how=how, count=5, per_label=2).tolist()  # type: ignore[arg-type]
    assert (len(set(both)), max(labels_of(gallery, both).values())) == (5, 2)
    assert both == sorted(both)
    each = sample_images(gallery, ids[:9], how=how, per_label=2).tolist()  # type: ignore[arg-type]
    assert set(labels_of(gallery, each).values()) == {2}
    assert set(each) <= set(ids[:9].tolist())
    assert sample_images(gallery, ids, how=how, count=15).tolist() == ids.tolist()  # type: ignore[arg-type]
    with pytest.raises(InputError, match="7 images were requested, there are 6 with at most 2 of each label"):
        sample_images(gallery, ids, how=how, count=7, per_label=2)  # type: ignore[arg-type]


def test_typical_images_are_the_nearest_to_the_mean_of_their_label(gallery: Gallery) -> None:
    vectors, labels, ids, names = gallery.labelled_vectors()
    expected = []
    for label in range(len(names)):
        own = vectors[labels == label]
        expected.append(int(ids[labels == label][np.argmax(own @ own.mean(axis=0))]))
    assert sample_images(gallery, gallery.ids, how="typical", count=3).tolist() == sorted(expected)


def test_diverse_images_follow_a_plain_farthest_first_traversal() -> None:
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(60, 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    chosen = _choose_far(vectors, np.zeros(60, dtype=np.int64), count=12, per_label=60).tolist()
    plain = [int(np.argmax(vectors @ vectors.mean(axis=0)))]
    while len(plain) < 12:
        others = [one for one in range(60) if one not in plain]
        plain.append(min(others, key=lambda one: max(float(vectors[one] @ vectors[taken]) for taken in plain)))
    assert chosen == plain


def test_random_samples_follow_their_seed(gallery: Gallery) -> None:
    samples = [sample_images(gallery, gallery.ids, how="random", count=6, seed=seed).tolist() for seed in (1, 1, 2)]
    assert samples[0] == samples[1] != samples[2]


def test_samples_that_cannot_be_are_one_clear_error(gallery: Gallery) -> None:
    for text in ("wild:3", "diverse:0", "diverse:x", "diverse:", "diverse:1.5"):
        with pytest.raises(InputError, match="expected one of diverse, typical, random and a number"):
            read_sample(text)
    with pytest.raises(InputError, match="say how many images"):
        sample_images(gallery, gallery.ids, how="typical")
    with pytest.raises(UnknownImageError):
        sample_images(gallery, np.array([1, 99]), how="typical", count=1)


def test_diverse_images_of_many_are_chosen_among_random_ones(gallery: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "_MOST_DIVERSE", 6)
    monkeypatch.setattr(sampling, "_MOST_COMPARED", 36)
    found = sample_images(gallery, gallery.ids, how="diverse", count=6, per_label=2).tolist()
    assert set(labels_of(gallery, found).values()) == {2}
    with pytest.raises(InputError, match="7 diverse images are asked for, at most 6"):
        sample_images(gallery, gallery.ids, how="diverse", count=7)
