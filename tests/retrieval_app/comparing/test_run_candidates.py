"""Training runs as candidates of a comparison."""

from pathlib import Path

import pytest

import retrieval_app
from index.commands.evaluate_command import evaluate
from retrieval_app.comparing.compare_report import format_report
from tests.index.galleries import invoke
from tests.photos import KINDS, write_photos

QUICK = {"backbone": "squeezenet1_1", "weights": "none", "resize": 40, "crop": 32, "view": "crop", "pooling": "own"}


@pytest.mark.slow  # which trains
def test_a_run_is_compared_as_its_model_and_says_which_images_it_was_trained_on(tmp_path: Path) -> None:
    photos, part, run, model = (tmp_path / name for name in ("photos", "part", "run", "model.onnx"))
    write_photos(photos, kinds=KINDS[:4], pictures_per_kind=12, seed=0, size=48)
    write_photos(part, kinds=KINDS[:2], pictures_per_kind=12, seed=0, size=48)
    retrieval_app.train(part, run, cache=tmp_path / "c", workers=1, frozen=True, head_steps=4, **QUICK)
    retrieval_app.export(run, model)
    found = retrieval_app.compare(photos, {"run": run, "model": model}, tmp_path / "out", cache=tmp_path / "c")
    ours, exported = found["candidates"]
    assert (ours["recall"], ours["width"]) == (exported["recall"], exported["width"])
    assert (ours["trained_on"], exported["trained_on"]) == (24, 24)  # the file names the run beside it
    assert "warning: run was trained on 24 of these images, so its scores are too good" in format_report(found)
    alone = retrieval_app.compare(photos, [model, "builtin"], tmp_path / "out", cache=tmp_path / "c")
    assert [one["trained_on"] for one in alone["candidates"]] == [None, None]
    assert "note: model was made by `retrieval train`" in format_report(alone)
    for more, notes in (([], 1), (["--query", photos], 0)):
        evaluated = invoke(evaluate, "--model", model, "--data", photos, *more)
        assert evaluated.stdout.count("`retrieval train` made this model") == notes
