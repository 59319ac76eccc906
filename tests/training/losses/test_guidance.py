"""Language guidance against loops over its definition, and the files its similarities come from."""

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
    return embeddings.requires_grad_(), 2 * torch.rand(batch, batch, dtype=torch.float64, generator=generator) - 1


def write(folder: Path, **arrays: object) -> Path:
    np.savez(folder / "similarities.npz", **arrays)
    return folder / "similarities.npz"


def load(path: Path) -> Guidance:
    return load_guidance(path, classes=CLASSES, sha256=HASHES)


@given(seed=st.integers(0, 2**31), batch=st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_guidance_is_its_definition_in_value_and_gradient(seed: int, batch: int) -> None:
    embeddings, similarities = draw(seed, batch=batch)
    value = language_guidance_loss(embeddings, similarities)
    value.backward()
    expected, (gradient,) = oracle.value_and_gradients(
        lambda x: oracle.language_guidance(x, similarities.tolist()), embeddings
    )
    assert value.item() == pytest.approx(expected, abs=1e-10)
    torch.testing.assert_close(embeddings.grad, gradient, rtol=1e-10, atol=1e-10)


def test_gradients_agree_with_finite_differences_and_none_reaches_the_language_side() -> None:
    embeddings, similarities = draw(1, batch=5)
    assert torch.autograd.gradcheck(lambda x: language_guidance_loss(x, similarities), embeddings)
    language_guidance_loss(embeddings, similarities.requires_grad_()).backward()
    assert similarities.grad is None


def test_similarities_equal_to_the_visual_ones_cost_nothing_and_a_shift_of_them_does_not_count() -> None:
    embeddings, similarities = draw(2, batch=6)
    embeddings = embeddings.detach()
    unit = nn.functional.normalize(embeddings)
    assert float(language_guidance_loss(embeddings, unit @ unit.T)) == pytest.approx(0, abs=1e-15)
    torch.testing.assert_close(
        language_guidance_loss(embeddings, similarities), language_guidance_loss(embeddings, similarities + 1)
    )


@pytest.mark.parametrize("batch", [0, 1])
def test_batches_without_pairs_cost_exactly_nothing(batch: int) -> None:
    embeddings, similarities = draw(4, batch=batch)
    value = language_guidance_loss(embeddings, similarities)
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


def test_similarities_are_found_by_the_name_of_the_class_or_by_the_content_of_the_image(tmp_path: Path) -> None:
    matrix = np.random.default_rng(0).uniform(-1, 1, size=(5, 5))
    batch = Batch(labels=torch.tensor([0, 0, 2, 1]), rows=torch.tensor([3, 0, 2, 2]))
    names = ["cat", "dog", "ant", "bee"]
    guidance = load(write(tmp_path, classes=np.array(names), similarities=matrix[:4, :4]))
    places = [names.index(CLASSES[label]) for label in batch.labels.tolist()]
    torch.testing.assert_close(guidance(batch), torch.from_numpy(matrix[np.ix_(places, places)]).float())
    assert not guidance.state_dict(), "no part of a checkpoint"
    with pytest.raises(ValueError, match="'rows'"):
        Guidance(torch.eye(2), by="rows")
    stored = [HASHES[2], "0" * 64, HASHES[0], HASHES[3], HASHES[1]]
    guidance = load(write(tmp_path, sha256=np.array(stored), similarities=matrix))
    places = [stored.index(HASHES[row]) for row in batch.rows.tolist()]
    torch.testing.assert_close(guidance(batch), torch.from_numpy(matrix[np.ix_(places, places)]).float())


NAMES = np.array(CLASSES)
BROKEN = np.where(np.eye(3) > 0, np.nan, 0.0)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"classes": NAMES}, "expected the array 'similarities'.*found classes"),
        ({"similarities": np.eye(3)}, "one of 'classes' and 'sha256', found similarities"),
        ({"similarities": np.eye(3), "classes": NAMES, "sha256": NAMES}, "one of 'classes' and 'sha256'"),
        ({"similarities": np.eye(4), "classes": NAMES}, r"must be finite numbers \(3, 3\).*got float64 \(4, 4\)"),
        ({"similarities": BROKEN, "classes": NAMES}, "must be finite numbers"),
        ({"similarities": np.eye(3).astype(str), "classes": NAMES}, "must be finite numbers .* got <U"),
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


def test_what_is_no_archive_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "single.npy", np.eye(3))
    for path, message in (
        (tmp_path / "none.npz", "none.npz: .*No such file"),
        (tmp_path, "cannot be read"),
        (tmp_path / "single.npy", "a single array"),
    ):
        with pytest.raises(InputError, match=message):
            load(path)
    path = write(tmp_path, classes=NAMES, similarities=np.eye(3))
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:200] + b"\xff" * 40 + whole[240:], b"", b"text"):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"similarities\.npz"):
            load(path)
