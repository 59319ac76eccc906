"""Random trees where a gallery is expected: no command, and no server, changes what it did not make."""

import base64
import json
import random
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fuzz.campaign import FaultError
from tests.index.versions.test_gallery_identity import (
    CONTENTS,
    OWN,
    furnish,
    test_no_command_changes_a_folder_that_is_no_gallery,
    test_what_somebody_put_into_a_gallery_stays_as_it_is,
)
from tests.models import write_tiny_model

# The properties that the suite checks on some examples, without their own way to draw.
_leaves_folder_alone = test_no_command_changes_a_folder_that_is_no_gallery.hypothesis.inner_test
_leaves_guests_alone = test_what_somebody_put_into_a_gallery_stays_as_it_is.hypothesis.inner_test
Tree = dict[str, object]


def draw_tree(chance: random.Random) -> Tree:
    """Names among a gallery's own and others, with contents like its own and others, folders and links."""
    tree: Tree = {}
    for _ in range(chance.randint(1, 10)):
        names = [chance.choice((*OWN, "photo.jpg", "caf\xe9", "000099")) for _ in range(chance.randint(1, 4))]
        tree["/".join(names)] = chance.choice(
            (chance.choice(CONTENTS), chance.randbytes(chance.randint(0, 60)), "folder", "outside", "nowhere", ".")
        )
    return tree


class FolderAttack:
    def __init__(self, place: Path) -> None:
        self._place = place

    def attack(self, chance: random.Random) -> str:
        tree, in_gallery, seed = draw_tree(chance), chance.random() < 0.3, chance.randrange(100)
        try:
            if in_gallery:
                _leaves_guests_alone(place=self._place, tree=tree, seed=seed)
            else:
                _leaves_folder_alone(place=self._place, tree=tree)
        except Exception as error:
            shown = {
                name: {"base64": base64.b64encode(thing).decode()} if isinstance(thing, bytes) else thing
                for name, thing in tree.items()
            }
            content = json.dumps({"in_gallery": in_gallery, "seed": seed, "tree": shown}, indent=1).encode()
            problem = "".join(traceback.format_exception(error)[-3:]).strip()
            raise FaultError(problem, content=content, suffix=".json") from error
        return "a gallery left its guests alone" if in_gallery else "a folder was left alone"

    def check(self) -> None:
        """All is said of each tree."""


@contextmanager
def attack_folders(folder: Path) -> Iterator[FolderAttack]:
    """Images, a model and a gallery."""
    yield FolderAttack(furnish(folder, write_tiny_model(folder / "tiny.onnx")))
