"""When two images count as one image, in a module that loads nothing heavy.

The defaults were chosen on 5,398 photos of clothing (people's own, shorter side 256, many on the same carpet or hanger)
with four models on MobileNetV2: its raw features, PCA-whitened ones, and heads trained with Proxy-NCA and SPA. Copies
were made of 1,600 of them. Found of each kind, lowest and highest of three models (all but SPA), in percent:

  PNG, JPEG of quality 90         100        a small watermark            95
  brightness by 10 percent        100        cropped by 2 percent         85-89
  JPEG of quality 60              99-100     a border of 2 percent        80-86
  twice as large                  99-100     WebP of quality 75           77-95
  JPEG of quality 30              46-79      cropped by 5 percent         21-26
  half as large (128 pixels)      2-14       mirrored                     0

Of the 14.6 million pairs of photos two passed, with every model: one image saved again (and labelled `shorts` and
`skirt`), and one jacket photographed twice. The most similar photos of different things had a similarity of
0.91 within 6 bits, 0.95 within 8 and 0.96 within 10 (SPA; 0.86, 0.92 and 0.93 with the others): embeddings alone call
things alike that are not, as does the hash alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from index.config_fields import check_fields, option

HASH_BITS = 64


MIN_SIMILARITY, MAX_HASH_DISTANCE = 0.92, 6


@dataclass(frozen=True, slots=True)
class DuplicateConfig:
    """Near-duplicates: limits of vectors and of perceptual hashes.

    Where the model tells images, it is the vectors that do so which are compared, and from which cosine on two are
    copies is the model's to say; hashes may differ then, as those of cut or mirrored images do.
    """

    min_similarity: float | None = option(
        None, f"Near-duplicates have vectors of at least this cosine similarity.  [default: {MIN_SIMILARITY}; as the "
        "model says where it tells images]", above=0, at_most=1,
    )  # fmt: skip
    max_hash_distance: int | None = option(
        None, f"Near-duplicates differ in at most so many of the {HASH_BITS} bits of their perceptual hash.  [default: "
        f"{MAX_HASH_DISTANCE}; any where the model tells images]", at_least=0, at_most=HASH_BITS,
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_fields(self)

    def settle(self, copy_threshold: float | None) -> DuplicateConfig:
        """The same with nothing left open, for a model that tells images from this cosine on; None: it does not."""
        if copy_threshold is None:
            usual: tuple[float, int] = MIN_SIMILARITY, MAX_HASH_DISTANCE
        else:
            usual = max(copy_threshold, 1e-6), HASH_BITS
        given = self.min_similarity, self.max_hash_distance
        similarity, distance = (own if own is not None else value for own, value in zip(given, usual, strict=True))
        return DuplicateConfig(similarity, int(distance))

    @property
    def limits(self) -> tuple[float, int]:
        """The least cosine and the most bits, of one that is settled."""
        assert self.min_similarity is not None
        assert self.max_hash_distance is not None
        return self.min_similarity, self.max_hash_distance
