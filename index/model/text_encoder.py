"""Text encoder: the text tower of a model, which embeds texts into the space of its images, on the CPU without torch.

The tower is two files beside the model file, `model.text.onnx` and `model.tokenizer.json`. The tokenizer pads and
truncates by itself; the text model passes the same safety check as an image model before a runtime reads it.
"""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from index.arrays import Vectors
from index.durable import write_durably
from index.errors import InputError, ModelFileError, missing_imports_as_dependency_errors
from index.model.backends.onnxruntime import CPU, import_onnxruntime, list_errors
from index.model.checksum import MAX_MODEL_BYTES
from index.model.contract import ModelContract, TextTower, find_contract
from index.model.graph import UnsafeModelError, check_graph

MASK, TOKEN_TYPES = "attention_mask", "token_type_ids"
_INTEGERS = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}
_LEAST_NORM = 1e-12


def read_text_files(model: Path, contract: ModelContract) -> dict[Path, bytes]:
    """Content of text model and tokenizer beside a model file, verified by the contract's checksums."""
    found = {}
    for path, sha256 in contract.text_files(model).items():
        if not path.is_file():
            raise ModelFileError(
                path,
                f"missing: {model.name} has a text tower, of which this file belongs beside it; copy it there from "
                "where the model came, or export the model again",
            )
        try:
            size = path.stat().st_size
            found[path] = path.read_bytes() if size <= MAX_MODEL_BYTES else b""
        except OSError as error:
            raise ModelFileError(path, f"cannot be read: {error.strerror}") from error
        seen = hashlib.sha256(found[path]).hexdigest()
        if seen != sha256:
            raise ModelFileError(
                path,
                f"damaged, or of another model than {model.name}: its SHA-256 is {seen[:16]}…, expected "
                f"{sha256[:16]}…; copy the file again from where the model came, or export the model again",
            )
    return found


def copy_text_files(model: Path, copy: Path, contract: ModelContract) -> None:
    """Write text model and tokenizer, verified, from beside a model file to beside a copy of it."""
    contents = read_text_files(model, contract).values()
    for path, content in zip(contract.text_files(copy), contents, strict=True):
        write_durably(path, content)


class TextEncoder:
    """A text tower opened for inference; any number of threads may call `embed`.

    Args:
        model: content of the text model.
        tokenizer: content of the tokenizer's file.
        shown: name of the text model in errors.
        threads: of one run.
    """

    def __init__(self, tower: TextTower, model: bytes, tokenizer: bytes, *, shown: object, threads: int = 1) -> None:
        with missing_imports_as_dependency_errors("a query by text"):
            from tokenizers import Tokenizer
        self.width, self._tower, self._shown = tower.width, tower, shown
        try:
            self._tokenizer = Tokenizer.from_str(tokenizer.decode())
        except Exception as error:  # the package raises no class of its own
            raise ModelFileError(shown, f"its tokenizer cannot be read: {error}") from error
        self._session, self._errors = _open(model, shown=shown, threads=threads)
        inputs = {value.name: value.type for value in self._session.get_inputs()}
        self._types = {name: _INTEGERS.get(kind) for name, kind in inputs.items()}
        tokens = [name for name in inputs if name not in (MASK, TOKEN_TYPES)]
        if len(tokens) != 1 or None in self._types.values():
            problem = f"its inputs are {inputs}, expected one of token ids, int64 or int32, and perhaps {MASK}"
            raise ModelFileError(shown, f"not a text model: {problem}")
        self._input = tokens[0]

    @classmethod
    def open(cls, model: Path, *, threads: int = 1) -> "TextEncoder | None":
        """The text encoder of a model file; None for a model without a text tower."""
        contract = find_contract(model)
        if contract is None or contract.text is None:
            return None
        (path, data), (_, tokenizer) = read_text_files(model, contract).items()
        return cls(contract.text, data, tokenizer, shown=path, threads=threads)

    def tokenize(self, text: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """(1, T) token ids of a text and their attention mask, both of the model's token length."""
        encoding = self._tokenizer.encode(text)
        ids, mask = (np.array([values], dtype=np.int64) for values in (encoding.ids, encoding.attention_mask))
        if ids.shape != (1, self._tower.token_length):
            problem = f"its tokenizer gives {ids.shape[1]} tokens, expected {self._tower.token_length}"
            raise ModelFileError(self._shown, problem)
        return ids, mask

    def run(self, text: str) -> npt.NDArray[Any]:
        """The model's pooled output for a text, (1, D) floats of any norm."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"a text must be valid Unicode, got {text!r:.200}") from error
        ids, mask = self.tokenize(text)
        values: dict[str, Any] = {self._input: ids, MASK: mask, TOKEN_TYPES: np.zeros_like(ids)}
        given = {name: values[name].astype(kind) for name, kind in self._types.items()}
        try:
            [found] = self._session.run([self._tower.output], given)
        except self._errors as error:
            raise ModelFileError(self._shown, f"the model failed on a text: {error}") from error
        if self._tower.pooling != "none" and found.ndim == 3:
            found = found[:, ids[0].argmax() if self._tower.pooling == "end-of-text" else -1]
        pooled: npt.NDArray[Any] = found
        return pooled

    def embed(self, text: str) -> Vectors:
        """One text to a (D,) float32 unit vector."""
        found = self.run(text)
        if found.shape != (1, self.width):
            raise ModelFileError(self._shown, f"the model gave shape {found.shape} for a text, not (1, {self.width})")
        vector = found[0].astype(np.float64)
        norm = float(np.linalg.norm(vector))
        if not _LEAST_NORM < norm < np.inf:
            raise InputError(f"{text!r:.200}: the model gave no finite vector for this text")
        unit: Vectors = (vector / norm).astype(np.float32)
        return unit


def _open(model: bytes, *, shown: object, threads: int = 1) -> tuple[Any, tuple[Any, ...]]:
    """A session of ONNX Runtime on the CPU after the safety check of the graph, and what its runs raise."""
    runtime = import_onnxruntime()
    errors = list_errors(runtime)
    try:
        check_graph(model)
        options = runtime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 3
        session = runtime.InferenceSession(model, options, [CPU], enable_fallback=0)
    except (UnsafeModelError, *errors) as error:
        raise ModelFileError(shown, f"not a usable ONNX text model: {error}") from error
    return session, errors
