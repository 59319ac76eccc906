"""The errors that worker processes hand to their parent."""

import pickle

import pytest

from index.errors import ImageError, InputError, MissingDependencyError, ModelFileError, RetrievalError


@pytest.mark.parametrize(
    "error",
    [
        InputError("no such file"),
        ImageError(path="a.jpg", reason="truncated", detail="20 bytes"),
        ModelFileError("m.onnx", "no contract"),
        MissingDependencyError(package="p", extra="e", purpose="it"),
    ],
)
def test_an_error_comes_out_of_a_pickle_as_it_went_in(error: RetrievalError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.__dict__ == error.__dict__
