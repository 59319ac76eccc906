"""Groups of images, of which a search returns only the best: near-duplicates, or equal values of a column."""

from collections.abc import Hashable, Iterable

import numpy as np

from index.arrays import Ids

FOLDER = "folder"
"""Groups by the folder of each image, in place of a column."""


class ImageGroups:
    """Disjoint groups of images, by (id, value) pairs: images of one value are one group.

    Attributes:
        count: the number of groups.
        grouped: (n,) int64 ascending ids of all images in groups.
    """

    def __init__(self, values: Iterable[tuple[int, Hashable]]) -> None:
        numbers = dict[Hashable, int]()
        pairs = sorted((number, numbers.setdefault(value, len(numbers))) for number, value in values)
        self.grouped, self._group = np.array(pairs, dtype=np.int64).reshape(-1, 2).T.copy()
        self.count = len(numbers)
        self._members = self.grouped[np.argsort(self._group, kind="stable")]
        self._starts = np.concatenate([[0], np.cumsum(np.bincount(self._group, minlength=self.count))])

    def heads(self, ids: Ids) -> Ids:
        """(n,) int64: the first image of the group of each of (n,) ids; an image without a group is its own."""
        if not len(self.grouped):
            return ids
        places = np.searchsorted(self.grouped, ids).clip(max=len(self.grouped) - 1)
        firsts = self._members[self._starts[self._group[places]]]
        return np.where(self.grouped[places] == ids, firsts, ids)

    def members(self, image_id: int) -> Ids:
        """(n,) int64 ascending ids of the images in the group of an image, itself among them; none without a group."""
        place = int(np.searchsorted(self.grouped, image_id))
        if [*self.grouped[place : place + 1]] != [image_id]:
            return np.empty(0, dtype=np.int64)
        group = self._group[place]
        return self._members[self._starts[group] : self._starts[group + 1]]
