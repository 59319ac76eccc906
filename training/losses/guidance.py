"""Language guidance (Roth et al., "Integrating Language Guidance into Vision-based Deep Metric Learning", 2022)."""

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
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

    The file has `similarities`, (K, K), and the names of rows and columns: `classes` or `sha256` of the image files in
    hexadecimal, (K,). It may have more classes or images than the run.
    """
    shown = printable_path(path)
    try:
        with Path(path).open("rb") as file:  # numpy leaves files open that are not archives
            archive = np.load(file, allow_pickle=False)
            arrays = dict(archive) if isinstance(archive, np.lib.npyio.NpzFile) else {"a single array": archive}
    except OSError as error:
        raise InputError(f"the similarities cannot be read ({error.strerror or error})", at=path) from error
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"no .npz file of plain arrays ({error}); write it with numpy.savez", at=path) from error
    keys = [key for key in ("classes", "sha256") if key in arrays]
    if "similarities" not in arrays or len(keys) != 1:
        raise InputError(
            f"{shown}: expected the array 'similarities' and one of 'classes' and 'sha256', "
            f"found {', '.join(sorted(arrays)) or 'none'}"
        )
    names, matrix, wanted = arrays[keys[0]], arrays["similarities"], classes if keys[0] == "classes" else sha256
    what = f"{shown}: '{keys[0]}'"
    if names.ndim != 1 or names.dtype.kind != "U":
        raise InputError(f"{what} must be a list of text, got {names.dtype} of shape {names.shape}")
    places = {str(name): place for place, name in enumerate(names)}
    if len(places) < len(names):
        raise InputError(f"{what} names {len(names) - len(places)} rows twice; give every name one row")
    if missing := sorted(set(wanted) - places.keys()):
        more = f" and {len(missing) - NAMES_SHOWN} more" if len(missing) > NAMES_SHOWN else ""
        raise InputError(
            f"{what} lacks {len(missing)} of the {len(set(wanted))} that the run trains on: "
            f"{', '.join(missing[:NAMES_SHOWN])}{more}; add rows and columns for them"
        )
    if matrix.shape != (len(names), len(names)) or matrix.dtype.kind not in "fiu" or not np.isfinite(matrix).all():
        raise InputError(
            f"{shown}: 'similarities' must be finite numbers ({len(names)}, {len(names)}) for the names beside it, got "
            f"{matrix.dtype} {matrix.shape}"
        )
    rows = [places[name] for name in wanted]
    return Guidance(
        torch.from_numpy(matrix[np.ix_(rows, rows)].astype(np.float32)),
        by="classes" if keys == ["classes"] else "images",
    )
