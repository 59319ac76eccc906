"""Class hierarchies from a CSV."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.errors import InputError
from training.data.label_noise import find_relatives, read_parents


def write_csv(folder: Path, text: str) -> Path:
    path = folder / "classes.csv"
    path.write_text(text, encoding="utf-8")
    return path


TREE = "class,parent\ncat,feline\nlion,feline\nfeline,animal\ndog,canine\ncanine,animal\nanimal,\n"


def test_columns_may_stand_in_any_order_after_a_byte_order_mark(tmp_path: Path) -> None:
    path = write_csv(tmp_path, "\ufeffparent,note,class\n feline ,x, cat \nfeline,y,löwe\n")
    assert read_parents(path) == {"cat": "feline", "löwe": "feline"}


def test_classes_that_do_not_train_make_no_branch(tmp_path: Path) -> None:
    parents = read_parents(write_csv(tmp_path, TREE))
    assert find_relatives(parents, ["cat", "lion", "dog"]) == [[[1]], [[0]], [[0, 1]]]
    assert find_relatives(parents, ["cat", "dog"]) == [[[1]], [[0]]]


def test_roots_are_not_joined() -> None:
    classes, parents = ["1", "2", "3"], {"1": "chair", "2": "chair", "3": "lamp"}
    with pytest.raises(InputError, match=r"class '3' has no relative.* alone under its root 'lamp'"):
        find_relatives(parents, classes)
    joined = parents | {"lamp": "furniture", "chair": "furniture"}
    assert find_relatives(joined, classes) == [[[1]], [[0]], [[0, 1]]]


def test_a_class_that_the_hierarchy_lacks_is_named() -> None:
    with pytest.raises(InputError, match=r"--hierarchy: 1 of the classes not found: 'cat'; add a row"):
        find_relatives({"dog": "pet"}, ["cat", "dog"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,parent\ncat,feline\n", r"classes\.csv: expected a header with the columns class,parent; found"),
        ("", r"expected a header"),
        ("class,parent\ncat,feline\n,feline\n", r"line 3: the class is empty"),
        ("class,parent\ncat,feline\ncat,pet\n", r"line 3: 'cat' stands in line 2 already, with the parent 'fel"),
        ("class,parent\ndog,pet\npet,dog\ncat,pet\n", r"line 3: the parent 'dog' of 'pet' lies below it"),
        ("class,parent\ncat,dog\nx,x\n", r"line 3: the parent 'x' of 'x' lies below it"),
    ],
)
def test_a_csv_that_is_no_tree_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_parents(write_csv(tmp_path, text))


def test_a_file_in_another_encoding_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "classes.csv"
    path.write_bytes("class,parent\nlöwe,feline\n".encode("latin-1"))
    with pytest.raises(InputError, match="UTF-8"):
        read_parents(path)


@st.composite
def trees(draw: st.DrawFn) -> tuple[dict[str, str], list[str]]:
    """A parent of every node but the root, and two classes or more, inner nodes among them."""
    count = draw(st.integers(2, 25))
    parents = {f"v{i}": f"v{draw(st.integers(0, i - 1))}" for i in range(1, count)}
    nodes = [f"v{i}" for i in range(count)]
    return parents, draw(st.lists(st.sampled_from(nodes), min_size=2, unique=True))


@given(tree=trees())
@settings(deadline=None)
def test_relatives_are_the_classes_below_the_first_ancestor_shared_with_any(
    tree: tuple[dict[str, str], list[str]],
) -> None:
    parents, classes = tree
    relatives = find_relatives(parents, classes)
    climbs = {name: [name] for name in classes}
    for climb in climbs.values():
        while climb[-1] in parents:
            climb.append(parents[climb[-1]])
    for name, branches in zip(classes, relatives, strict=True):
        others = {number: other for number, other in enumerate(classes) if other != name}
        node = next(node for node in climbs[name] if any(node in climbs[other] for other in others.values()))
        children: dict[str, list[int]] = {}  # of the node; its own leaf, where it is a class, goes by its name
        for number, other in others.items():
            if node in climbs[other]:
                below = climbs[other][: climbs[other].index(node)]
                children.setdefault(below[-1] if below else node, []).append(number)
        assert sorted(branches) == sorted(children.values())
