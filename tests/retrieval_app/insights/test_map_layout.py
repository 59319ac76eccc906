"""Where members lie on the map."""

import numpy as np
import pytest

from index.gallery.gallery import Gallery
from retrieval_app.insights import map_layout
from retrieval_app.insights.map_layout import lay_out


def test_members_of_a_colour_lie_together_and_the_map_is_the_same_again(labelled: Gallery) -> None:
    progress: list[tuple[int, int]] = []
    layout = lay_out(labelled, lambda done, total: progress.append((done, total)))
    assert (layout.method, layout.total, layout.sampled) == ("t-sne", labelled.count, False)
    assert progress[-1] == (750, 750)
    places = np.stack([layout.x, layout.y], axis=1)
    assert ((places >= 0) & (places <= 1)).all()
    distances = np.linalg.norm(places[:, None] - places, axis=2)
    np.fill_diagonal(distances, np.inf)
    names = np.array(layout.labels)[layout.label]
    assert (names[distances.argmin(axis=1)] == names).mean() > 0.85
    again = lay_out(labelled)
    np.testing.assert_array_equal(np.stack([again.x, again.y], axis=1), places)


def test_of_many_members_a_sample_is_shown(labelled: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(map_layout, "MOST_SHOWN", 20)
    layout = lay_out(labelled)
    assert (layout.sampled, layout.total, len(layout.ids)) == (True, labelled.count, 20)
    assert set(layout.ids) <= set(labelled.ids.tolist())
    assert (np.diff(layout.ids) > 0).all()
