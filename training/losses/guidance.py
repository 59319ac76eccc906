"""Language guidance (Roth et al., "Integrating Language Guidance into Vision-based Deep Metric Learning", 2022)."""

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from index.errors import InputError
from index.text import printable_path
from training.losses.interface import Batch, cosine_to_proxies

NAMES_SHOWN = 5


def language_guidance_loss(embeddings: Tensor, similarities: Tensor) -> Tensor:
    """Divergence of the images' similarities from the language similarities, row by row.

        l = 1/B sum_i KL( softmax_j language_ij || softmax_j <x_i, x_j> )

    Direction and temperature 1 are the defaults of the authors' code. Ours is the plain divergence that ProcSim
    describes, over whole rows, i = j included. The code overwrites the pairs of one label by a constant in both
    matrices, which uses labels, and adds a constant to the other language similarities, which alone softmax would not
    see.

    Args:
        embeddings: (B, D), any norm.
        similarities: (B, B) cosines of the language embeddings; no gradient flows into them.
    """
    visual = cosine_to_proxies(embeddings, embeddings)
    target = similarities.detach().to(visual).log_softmax(dim=1)
    divergence = nn.functional.kl_div(visual.log_softmax(dim=1), target, log_target=True, reduction="sum")
    return divergence / max(len(embeddings), 1)


class Guidance(nn.Module):
    """Similarities of a run's classes or training images; not in its checkpoints.

    `matrix` is (C, C) by class, or (N, N) by image; `by` is `classes` or `images`.
    """

    matrix: Tensor

    def __init__(self, matrix: Tensor, *, by: str) -> None:
        super().__init__()
        if by not in ("classes", "images"):
            raise ValueError(f"similarities are by classes or by images, not by {by!r}")
        self.by = by
        self.register_buffer("matrix", matrix, persistent=False)

    def forward(self, batch: Batch) -> Tensor:
        """(B, B) similarities of a batch's images, or of their classes."""
        places = batch.labels if self.by == "classes" else batch.rows
        return self.matrix[places[:, None], places[None, :]]


def load_guidance(path: str | Path, *, classes: Sequence[str], sha256: Sequence[str]) -> Guidance:
    """Similarities from an .npz file, in the order of a run.

    The file has `similarities`, (K, K) or (k, K, K) for k matrices to average, and the names of rows and columns:
    `classes` or `sha256` of the image files in hexadecimal, (K,). It may have more classes or images than the run.
    """
    shown = printable_path(str(path))
    arrays = _read_arrays(path, shown=shown)
    keys = [key for key in ("classes", "sha256") if key in arrays]
    if "similarities" not in arrays or len(keys) != 1:
        raise InputError(
            f"{shown}: expected the array 'similarities' and one of 'classes' and 'sha256', "
            f"found {', '.join(sorted(arrays)) or 'none'}"
        )
    by, wanted = ("classes", classes) if keys[0] == "classes" else ("images", sha256)
    places = _find_places(arrays[keys[0]], wanted=wanted, what=f"{shown}: '{keys[0]}'")
    matrix = _mean_matrix(arrays["similarities"], size=len(arrays[keys[0]]), shown=shown)
    return Guidance(torch.from_numpy(matrix[np.ix_(places, places)]), by=by)


def _read_arrays(path: str | Path, *, shown: str) -> dict[str, npt.NDArray[Any]]:
    advice = "write it with numpy.savez"
    try:
        with Path(path).open("rb") as file:  # numpy leaves files that are no archives open
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise InputError(f"{shown}: a single array, expected an .npz file; {advice}")
            return {name: archive[name] for name in archive.files}
    except OSError as error:
        raise InputError(f"{shown}: the similarities cannot be read ({error.strerror or error})") from error
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{shown}: no .npz file of plain arrays ({error}); {advice}") from error


def _find_places(names: npt.NDArray[Any], *, wanted: Sequence[str], what: str) -> list[int]:
    """Places of the wanted names among the (K,) names of the file."""
    if names.ndim != 1 or names.dtype.kind != "U":
        raise InputError(f"{what} must be a list of text, got {names.dtype} of shape {names.shape}")
    places = {str(name): place for place, name in enumerate(names)}
    if len(places) < len(names):
        raise InputError(f"{what} names {len(names) - len(places)} rows twice; give every name one row")
    missing = sorted(set(wanted) - places.keys())
    if missing:
        more = f" and {len(missing) - NAMES_SHOWN} more" if len(missing) > NAMES_SHOWN else ""
        raise InputError(
            f"{what} lacks {len(missing)} of the {len(set(wanted))} that the run trains on: "
            f"{', '.join(missing[:NAMES_SHOWN])}{more}; add rows and columns for them"
        )
    return [places[name] for name in wanted]


def _mean_matrix(similarities: npt.NDArray[Any], *, size: int, shown: str) -> npt.NDArray[np.float32]:
    """(K, K) float32 from (K, K) or (k, K, K)."""
    if similarities.ndim not in (2, 3) or similarities.shape[-2:] != (size, size) or not similarities.size:
        raise InputError(
            f"{shown}: 'similarities' must be ({size}, {size}) or (k, {size}, {size}) for the {size} names beside it, "
            f"got {similarities.shape}"
        )
    if similarities.dtype.kind not in "fiu":
        raise InputError(f"{shown}: 'similarities' must be numbers, got {similarities.dtype}")
    if not np.isfinite(similarities).all():
        raise InputError(f"{shown}: 'similarities' has entries that are not finite; compute them again")
    matrix = similarities if similarities.ndim == 2 else similarities.mean(axis=0, dtype=np.float64)
    return matrix.astype(np.float32)
