"""Thresholds of near-duplicates. Imports nothing heavy.

The defaults were chosen on 5,398 photos of clothing (docs/results/labels.md, "Near-duplicates"): neither embeddings nor
hashes suffice alone.
"""

from dataclasses import dataclass

from index.config_fields import check_fields, option

HASH_BITS = 64
LIMITS_SETTING = "duplicate_limits"  # of a catalogue: the resolved config of the last comparison
MIN_SIMILARITY, MAX_HASH_DISTANCE = 0.92, 6


@dataclass(frozen=True, slots=True)
class DuplicateConfig:
    """Near-duplicates: thresholds of vectors and of perceptual hashes.

    A copy-detection output brings its own threshold, which a gallery of alike images raises; hashes may then differ.
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
            defaults: tuple[float, int] = MIN_SIMILARITY, MAX_HASH_DISTANCE
        else:
            defaults = max(copy_threshold, 1e-6), HASH_BITS
        given = self.min_similarity, self.max_hash_distance
        similarity, distance = (own if own is not None else value for own, value in zip(given, defaults, strict=True))
        return DuplicateConfig(similarity, int(distance))

    @property
    def limits(self) -> tuple[float, int]:
        """Least cosine and most bits, of a resolved config."""
        assert self.min_similarity is not None
        assert self.max_hash_distance is not None
        return self.min_similarity, self.max_hash_distance
