"""Blocks learn the teacher's side by side, and a student of its shape comes near it in a few steps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from index.errors import InputError
from tests.photos import KINDS, write_photos
from tests.training.distill.test_distill_run import run
from training.distill.blocks import measure_blocks, require_one_shape


def _blocks(*widths: int, seed: int) -> list[nn.Module]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return [
            nn.Sequential(nn.Conv2d(before, after, 1), nn.Tanh())
            for before, after in zip((3, *widths), widths, strict=False)
        ]


def _images(seed: int = 0) -> torch.Tensor:
    return torch.randn(4, 3, 2, 2, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("own_inputs", [False, True])
def test_a_block_is_measured_by_the_variance_of_each_of_its_channels(own_inputs: bool) -> None:
    teacher, student, images = _blocks(5, 2, seed=0), _blocks(5, 2, seed=1), _images()
    inputs, expected = images, []
    taught = images
    for teaching, learning in zip(teacher, student, strict=True):
        found = learning(inputs if own_inputs else taught)
        taught = teaching(taught)
        variances = torch.stack([channel.var(correction=0) for channel in taught.unbind(1)])
        total = 0.0
        for channel in range(taught.shape[1]):
            squares = (found[:, channel] - taught[:, channel]).square()
            total += (squares / (variances[channel] + 0.05 * variances.mean())).mean().item()
        expected.append(total / taught.shape[1])
        inputs = found
    found_losses = measure_blocks(teacher, student, images, own_inputs=own_inputs)
    assert found_losses.tolist() == pytest.approx(expected, rel=1e-5)


def test_no_gradient_passes_from_block_to_block() -> None:
    teacher, student = _blocks(4, 4, seed=0), _blocks(4, 4, seed=1)
    for own_inputs in (False, True):
        losses = measure_blocks(teacher, student, _images(), own_inputs=own_inputs)
        first = next(student[0].parameters())
        assert not torch.autograd.grad(losses[1], first, retain_graph=True)[0].any()
        assert torch.autograd.grad(losses[0], first)[0].abs().sum() > 0


def test_a_student_that_is_its_teacher_differs_in_nothing() -> None:
    teacher = _blocks(4, 4, seed=0)
    assert measure_blocks(teacher, teacher, _images(), own_inputs=True).tolist() == [0, 0]


class _Network(nn.Module):
    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.features = nn.Sequential(*_blocks(*widths, seed=0))


def test_networks_of_other_shapes_are_told_apart() -> None:
    require_one_shape(_Network(4, 5), _Network(4, 5))
    with pytest.raises(
        InputError, match=r"block 1 of the teacher gives \(4, 64, 64\), the student's \(5, 64, 64\)"
    ):
        require_one_shape(_Network(4, 4), _Network(4, 5))
    with pytest.raises(InputError, match="the teacher has 2 blocks, the student 1"):
        require_one_shape(_Network(4, 4), _Network(4))
    with pytest.raises(InputError, match="the teacher has 0 blocks"):
        require_one_shape(nn.Linear(2, 2), nn.Linear(2, 2))


def test_blocks_learn_and_the_whole_goes_on_from_there(tmp_path: Path) -> None:
    import json

    write_photos(tmp_path / "photos", kinds=KINDS[:3], pictures_per_kind=8, seed=0)
    run(
        tmp_path / "photos", tmp_path / "out", teacher="squeezenet1_1", backbone="squeezenet1_1", block_epochs=4,
        block_lr=1e-3, epochs=6,
    )  # fmt: skip
    lines = [json.loads(line) for line in (tmp_path / "out/epochs.jsonl").read_text().splitlines()]
    assert [line["blocks"] > 0 for line in lines] == [True] * 4 + [False] * 2
    assert lines[3]["blocks"] < lines[0]["blocks"]
    assert lines[4]["kind"] > 0
