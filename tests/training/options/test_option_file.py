"""Options in a TOML file: what is read, and what is refused with the file's name."""

from pathlib import Path
from typing import Any

import pytest
from click.core import ParameterSource

from index.errors import InputError
from training.commands import train
from training.options.resolve import resolve


def read_options(file: Path, *words: str) -> dict[str, Any]:
    """What `retrieval train --config FILE` takes from the file."""
    context = train.make_context("train", ["photos", "--out", "run", "--config", str(file), *words])
    from_file = ParameterSource.DEFAULT_MAP
    return {name: value for name, value in context.params.items() if context.get_parameter_source(name) is from_file}


def write(folder: Path, text: str) -> Path:
    (folder / "mine.toml").write_text(text, encoding="utf-8")
    return folder / "mine.toml"


def test_options_go_by_their_flags_or_by_their_names_in_python(tmp_path: Path) -> None:
    text = 'weights = "none"\nembedding-dim = 128\nmin_confidence = 0.2\nlambda = 0.25\nmethod = "spa"\n'
    text += "holdout = false\n"
    options = read_options(write(tmp_path, text))
    assert options == {
        "weights": "none",
        "embedding_dim": 128,
        "min_confidence": 0.2,
        "lambda_": 0.25,
        "method": "spa",
        "holdout": False,
    }
    assert resolve(**options).head.embedding_dim == 128
    assert read_options(tmp_path / "mine.toml", "--method", "raw") == {
        name: value for name, value in options.items() if name != "method"
    }, "the command line goes before"


def test_files_lie_beside_the_file_that_names_them(tmp_path: Path) -> None:
    for name in ("mobilenet.safetensors", f"{tmp_path}/mobilenet.safetensors"):
        assert read_options(write(tmp_path, f'weights = "{name}"\n')) == {
            "weights": str(tmp_path / "mobilenet.safetensors")
        }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("weights = ", "mine.toml: expected TOML such as embedding-dim = 128: "),
        ("weights = 'none'\nweights = 'none'", "mine.toml: expected TOML"),
        ("batchsize = 9", "mine.toml: batchsize: no such option; did you mean batch-size"),
        ("batch-size = 9\nbatch_size = 9", "mine.toml: batch_size stands there twice, once with - and once with _"),
        (
            "device = 'cuda'",
            "mine.toml: device: it belongs to the run, not to its training: give --device on the command",
        ),
        ("[embedding]\nembedding-dim = 8", r"mine.toml: \[embedding\] is a table; write options without one"),
    ],
)
def test_what_is_no_list_of_options_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_options(write(tmp_path, text))


def test_a_file_that_is_not_there_or_no_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"mine\.toml: cannot be read: No such file"):
        read_options(tmp_path / "mine.toml")
    (tmp_path / "mine.toml").write_bytes(b"weights = '\xff'")
    with pytest.raises(InputError, match=r"mine\.toml: expected TOML"):
        read_options(tmp_path / "mine.toml")
