"""Thresholds of near-duplicates. Imports nothing heavy.

The defaults were chosen on 5,398 photos of clothing (shorter side 256, many on the same carpet or hanger) with four
models on MobileNetV2: raw features, PCA-whitened features, and heads trained with Proxy-NCA and SPA. 1,600 photos were
edited. Edited photos found, in percent, lowest and highest of three models (all but SPA):

  PNG, JPEG of quality 90         100        a small watermark            95
  brightness by 10 percent        100        cropped by 2 percent         85-89
  JPEG of quality 60              99-100     a border of 2 percent        80-86
  twice as large                  99-100     WebP of quality 75           77-95
  JPEG of quality 30              46-79      cropped by 5 percent         21-26
  half as large (128 pixels)      2-14       mirrored                     0

Of 14.6 million pairs of photos two passed, with every model: one image saved twice (labelled `shorts` and `skirt`), and
one jacket photographed twice. The most similar photos of different things had a similarity of 0.91 within 6 bits, 0.95
within 8 and 0.96 within 10 (SPA; 0.86, 0.92 and 0.93 with the others). So neither embeddings nor hashes suffice alone.
"""

from dataclasses import dataclass

from index.config_fields import check_fields, option

HASH_BITS = 64
LIMITS_SETTING = "duplicate_limits"  # of a catalogue: the resolved config of the last comparison
MIN_SIMILARITY, MAX_HASH_DISTANCE = 0.92, 6


@dataclass(frozen=True, slots=True)
class DuplicateConfig:
    """Near-duplicates: thresholds of vectors and of perceptual hashes.

    A model with a copy-detection output brings its own threshold for these vectors, which a gallery of alike images
    raises. Hashes may then differ in all bits, as those of cropped or mirrored images do.
    """

    min_similarity: float | None = option(
        None,
        f"Least cosine similarity of near-duplicates.  [default: {MIN_SIMILARITY}; the model's copy threshold "
        "where it has one, raised if the gallery's images are alike]",
        above=0,
        at_most=1,
    )
    max_hash_distance: int | None = option(
        None,
        f"Most bits, of {HASH_BITS}, in which perceptual hashes of near-duplicates differ.  [default: "
        f"{MAX_HASH_DISTANCE}; any where the model has a copy threshold]",
        at_least=0,
        at_most=HASH_BITS,
    )

    def __post_init__(self) -> None:
        check_fields(self)

    def resolve(self, copy_threshold: float | None) -> "DuplicateConfig":
        """The config with defaults filled in; `copy_threshold` is the model's, None without a copy-detection output."""
        if copy_threshold is None:
            usual: tuple[float, int] = MIN_SIMILARITY, MAX_HASH_DISTANCE
        else:
            usual = max(copy_threshold, 1e-6), HASH_BITS
        given = self.min_similarity, self.max_hash_distance
        similarity, distance = (own if own is not None else value for own, value in zip(given, usual, strict=True))
        return DuplicateConfig(similarity, int(distance))

    @property
    def limits(self) -> tuple[float, int]:
        """Least cosine and most bits, of a resolved config."""
        assert self.min_similarity is not None
        assert self.max_hash_distance is not None
        return self.min_similarity, self.max_hash_distance
