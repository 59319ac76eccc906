"""Language guidance against loops over its definition, and the files its similarities come from."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from index.errors import InputError
from tests.oracles import confidence_losses as oracle
from training.losses.guidance import Guidance, language_guidance_loss, load_guidance
from training.losses.interface import Batch

CLASSES = ["ant", "bee", "cat"]
HASHES = [hashlib.sha256(bytes([number])).hexdigest() for number in range(4)]


def draw(seed: int, *, batch: int, width: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(batch, width, dtype=torch.float64, generator=generator)
    return embeddings, 2 * torch.rand(batch, batch, dtype=torch.float64, generator=generator) - 1


def similarity_matrix(size: int, *, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(size, 5))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows @ rows.T


def write(folder: Path, **arrays: object) -> Path:
    path = folder / "similarities.npz"
    np.savez(path, **arrays)
    return path


def load(path: Path) -> Guidance:
    return load_guidance(path, classes=CLASSES, sha256=HASHES)


@given(seed=st.integers(0, 2**31), batch=st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_guidance_is_its_definition_in_value_and_gradient(seed: int, batch: int) -> None:
    embeddings, similarities = draw(seed, batch=batch)
    embeddings.requires_grad_()
    value = language_guidance_loss(embeddings, similarities)
    value.backward()
    expected, (gradient,) = oracle.value_and_gradients(
        lambda x: oracle.language_guidance(x, similarities.tolist()), embeddings
    )
    assert value.item() == pytest.approx(expected, abs=1e-10)
    torch.testing.assert_close(embeddings.grad, gradient, rtol=1e-10, atol=1e-10)


def test_gradients_agree_with_finite_differences() -> None:
    embeddings, similarities = draw(1, batch=5)
    assert torch.autograd.gradcheck(lambda x: language_guidance_loss(x, similarities), embeddings.requires_grad_())


def test_similarities_equal_to_the_visual_ones_cost_nothing_and_a_shift_of_them_does_not_count() -> None:
    embeddings, similarities = draw(2, batch=6)
    unit = nn.functional.normalize(embeddings)
    assert float(language_guidance_loss(embeddings, unit @ unit.T)) == pytest.approx(0, abs=1e-15)
    torch.testing.assert_close(
        language_guidance_loss(embeddings, similarities), language_guidance_loss(embeddings, similarities + 1)
    )


def test_no_gradient_reaches_the_language_side() -> None:
    embeddings, similarities = draw(3, batch=4)
    similarities.requires_grad_()
    language_guidance_loss(embeddings.requires_grad_(), similarities).backward()
    assert similarities.grad is None
    assert embeddings.grad is not None


@pytest.mark.parametrize("batch", [0, 1])
def test_batches_without_pairs_cost_exactly_nothing(batch: int) -> None:
    embeddings, similarities = draw(4, batch=batch)
    value = language_guidance_loss(embeddings.requires_grad_(), similarities)
    value.backward()
    assert value.item() == 0.0
    assert not embeddings.grad.any()


def test_under_bfloat16_autocast_the_loss_is_the_float32_loss_of_the_same_numbers() -> None:
    embeddings, similarities = (tensor.float() for tensor in draw(5, batch=16))
    rounded = embeddings.bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = language_guidance_loss(rounded, similarities)
    assert inside.dtype == torch.float32
    assert torch.equal(inside, language_guidance_loss(rounded.float(), similarities))


def test_similarities_of_classes_are_found_by_name(tmp_path: Path) -> None:
    matrix = similarity_matrix(4)
    names = ["cat", "dog", "ant", "bee"]
    guidance = load(write(tmp_path, classes=np.array(names), similarities=matrix))
    batch = Batch(labels=torch.tensor([0, 0, 2, 1]), rows=torch.tensor([3, 2, 1, 0]))
    labelled = [names.index(CLASSES[label]) for label in batch.labels.tolist()]
    expected = torch.tensor([[matrix[a, b] for b in labelled] for a in labelled])
    torch.testing.assert_close(guidance(batch), expected.float())


def test_similarities_of_images_are_found_by_what_is_in_the_file_of_the_image(tmp_path: Path) -> None:
    matrix = similarity_matrix(5)
    stored = [HASHES[2], "0" * 64, HASHES[0], HASHES[3], HASHES[1]]
    guidance = load(write(tmp_path, sha256=np.array(stored), similarities=matrix))
    batch = Batch(labels=torch.tensor([0, 0, 0]), rows=torch.tensor([3, 0, 2]))
    places = [stored.index(HASHES[row]) for row in batch.rows.tolist()]
    torch.testing.assert_close(guidance(batch), torch.from_numpy(matrix[np.ix_(places, places)]).float())


def test_the_mean_of_several_matrices_is_used(tmp_path: Path) -> None:
    matrices = np.stack([similarity_matrix(3, seed=seed) for seed in range(5)])
    guidance = load(write(tmp_path, classes=np.array(CLASSES), similarities=matrices))
    batch = Batch(labels=torch.arange(3), rows=torch.arange(3))
    torch.testing.assert_close(guidance(batch), torch.from_numpy(matrices.mean(axis=0)).float())


def test_two_images_of_the_same_content_share_a_row(tmp_path: Path) -> None:
    path = write(tmp_path, sha256=np.array(HASHES[:2]), similarities=similarity_matrix(2))
    guidance = load_guidance(path, classes=CLASSES, sha256=[HASHES[0], HASHES[1], HASHES[0]])
    similarities = guidance(Batch(labels=torch.zeros(3, dtype=torch.int64), rows=torch.arange(3)))
    assert torch.equal(similarities[0], similarities[2])


def test_similarities_are_no_part_of_a_checkpoint() -> None:
    assert not Guidance(torch.eye(2), by="classes").state_dict()


def test_similarities_are_by_classes_or_by_images() -> None:
    with pytest.raises(ValueError, match="'rows'"):
        Guidance(torch.eye(2), by="rows")


NAMES = np.array(CLASSES)
BROKEN = np.where(np.eye(3) > 0, np.nan, 0.0)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"classes": NAMES}, "expected the array 'similarities'.*found classes"),
        ({"similarities": np.eye(3)}, "one of 'classes' and 'sha256', found similarities"),
        ({"similarities": np.eye(3), "classes": NAMES, "sha256": NAMES}, "one of 'classes' and 'sha256'"),
        ({"similarities": np.eye(4), "classes": NAMES}, r"must be \(3, 3\) or \(k, 3, 3\).*got \(4, 4\)"),
        ({"similarities": np.ones((3, 2)), "classes": NAMES}, r"got \(3, 2\)"),
        ({"similarities": np.ones(3), "classes": NAMES}, r"got \(3,\)"),
        ({"similarities": np.ones((0, 3, 3)), "classes": NAMES}, r"got \(0, 3, 3\)"),
        ({"similarities": BROKEN, "classes": NAMES}, "not finite"),
        ({"similarities": np.eye(3).astype(str), "classes": NAMES}, "must be numbers"),
        ({"similarities": np.eye(3), "classes": np.arange(3)}, "must be a list of text, got int64"),
        ({"similarities": np.eye(3), "classes": NAMES[:, None]}, r"of shape \(3, 1\)"),
        ({"similarities": np.eye(3), "classes": np.array(["ant", "bee", "ant"])}, "1 rows twice"),
        ({"similarities": np.eye(1), "classes": NAMES[:1]}, "lacks 2 of the 3 .*: bee, cat; add"),
        ({"similarities": np.eye(1), "sha256": np.array(HASHES[:1])}, "'sha256' lacks 3 of the 4"),
        ({"similarities": np.array([{}], dtype=object), "classes": NAMES}, "no .npz file of plain arrays"),
    ],
)
def test_files_that_do_not_fit_say_what_is_wrong(tmp_path: Path, arrays, message: str) -> None:
    with pytest.raises(InputError, match=rf"similarities\.npz.*{message}"):
        load(write(tmp_path, **arrays))


def test_a_missing_file_a_folder_text_and_a_single_array_are_refused(tmp_path: Path) -> None:
    text = tmp_path / "text.npz"
    text.write_text("similarities")
    single = tmp_path / "single.npy"
    np.save(single, np.eye(3))
    for path, message in (
        (tmp_path / "none.npz", "none.npz: .*No such file"),
        (tmp_path, "cannot be read"),
        (text, "no .npz file"),
        (single, "a single array"),
    ):
        with pytest.raises(InputError, match=message):
            load(path)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, classes=NAMES, similarities=np.eye(3))
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:200] + b"\xff" * 40 + whole[240:], b""):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"similarities\.npz"):
            load(path)
