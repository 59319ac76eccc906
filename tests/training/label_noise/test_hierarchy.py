"""Class hierarchies from a CSV and from files in WordNet's own format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.errors import InputError
from training.label_noise.hierarchy import read_hierarchy

LICENCE = "".join(f"  {line} This software and database is being provided to you  \n" for line in range(1, 30))

# key: the synset's words, its hypernyms in the file's order; "@i" before a hypernym: the synset is a named individual
NOUNS = {
    "entity": (["entity"], []),
    "animal": (["animal", "beast"], ["entity"]),
    "machine": (["machine"], ["entity"]),
    "person": (["person"], ["entity"]),
    "domestic": (["domestic_animal"], ["animal"]),
    "mammal": (["mammal"], ["animal"]),
    "carnivore": (["carnivore"], ["mammal"]),
    "feline": (["feline"], ["carnivore"]),
    "canine": (["canine"], ["carnivore"]),
    "cat": (["cat", "true_cat"], ["feline", "domestic"]),
    "tabby": (["tabby"], ["cat"]),
    "egyptian": (["Egyptian_cat"], ["cat"]),
    "dog": (["dog"], ["canine", "domestic"]),
    "lassie": (["Lassie"], ["@i dog"]),
    "bird": (["bird"], ["animal"]),
    "hen": (["hen"], ["bird", "domestic"]),
    "wader": (["wader"], ["bird"]),
    "crane machine": (["crane"], ["machine"]),
    "crane writer": (["Crane", "Hart_Crane"], ["@i person"]),
    "crane bird": (["crane"], ["wader"]),
    "thrush": (["thrush"], ["bird"]),
    "robin": (["robin"], ["thrush"]),
    "jay": (["jay", *(f"jaybird_{i}" for i in range(16))], ["bird"]),  # the count of words is hexadecimal: 11
}


def write_wordnet(
    folder: Path, nouns: Mapping[str, tuple[Sequence[str], Sequence[str]]] = NOUNS
) -> dict[str, str]:
    """Write data.noun and index.noun as wndb(5WN) has them, true byte offsets included; key to synset id."""
    offsets = dict.fromkeys(nouns, 0)
    for _ in range(2):  # offsets have eight digits whatever they are, so that the second round is right
        position, lines = len(LICENCE), []
        for key, (words, hypernyms) in nouns.items():
            pointers = [("@i" if up.startswith("@i ") else "@", up.removeprefix("@i ")) for up in hypernyms]
            pointers += [("~", below) for below, (_, above) in nouns.items() if key in above]
            named = " ".join(f"{word} {number:x}" for number, word in enumerate(words))
            pointed = "".join(f"{symbol} {offsets[other]:08d} n 0000 " for symbol, other in pointers)
            offsets[key] = position
            gloss = f'what we call {key}; "an @ example"  '
            lines.append(f"{position:08d} 05 n {len(words):02x} {named} {len(pointers):03d} {pointed}| {gloss}\n")
            position += len(lines[-1])
    senses: dict[str, list[int]] = {}
    for key, (words, _) in nouns.items():
        for word in words:
            senses.setdefault(word.lower(), []).append(offsets[key])
    index = [
        f"{word} n {len(at)} 2 @ ~ {len(at)} 0 {' '.join(f'{offset:08d}' for offset in at)}  \n"
        for word, at in sorted(senses.items())
    ]
    folder.mkdir(exist_ok=True)
    data = LICENCE + "".join(lines)
    assert all(data[offset:].startswith(f"{offset:08d} ") for offset in offsets.values())
    (folder / "data.noun").write_bytes(data.encode())
    (folder / "index.noun").write_bytes((LICENCE + "".join(index)).encode())
    return {key: f"n{offset:08d}" for key, offset in offsets.items()}


def write_csv(folder: Path, text: str) -> Path:
    path = folder / "classes.csv"
    path.write_text(text, encoding="utf-8")
    return path


def names_of(path: tuple[str, ...], ids: Mapping[str, str]) -> list[str]:
    keys = {synset: key for key, synset in ids.items()}
    return [keys[node] for node in path]


def test_a_word_takes_the_sense_below_the_synset_that_all_classes_share_or_its_first(tmp_path: Path) -> None:
    ids = write_wordnet(tmp_path)
    paths = read_hierarchy(tmp_path, classes=["crane", "robin", "jay"]).paths
    assert {name: names_of(path, ids) for name, path in paths.items()} == {
        "crane": ["crane bird", "wader", "bird"], "robin": ["robin", "thrush", "bird"], "jay": ["jay", "bird"],
    }  # fmt: skip
    paths = read_hierarchy(tmp_path, classes=["crane", "robin", "Hart Crane"]).paths
    assert names_of(paths["crane"], ids) == ["crane machine", "machine", "entity"]
    assert names_of(paths["Hart Crane"], ids) == ["crane writer", "person", "entity"]


def test_synset_ids_need_no_index(tmp_path: Path) -> None:
    ids = write_wordnet(tmp_path)
    (tmp_path / "index.noun").unlink()
    paths = read_hierarchy(tmp_path, classes=[ids["crane machine"], ids["crane bird"]]).paths
    assert names_of(paths[ids["crane machine"]], ids) == ["crane machine", "machine", "entity"]
    assert names_of(paths[ids["crane bird"]], ids) == ["crane bird", "wader", "bird", "animal", "entity"]


def test_the_first_hypernym_that_leads_to_the_root_is_followed(tmp_path: Path) -> None:
    ids = write_wordnet(tmp_path)
    paths = read_hierarchy(tmp_path, classes=["cat", "dog"]).paths
    assert names_of(paths["cat"], ids) == ["cat", "feline", "carnivore"]
    paths = read_hierarchy(tmp_path, classes=["cat", "dog", "hen"]).paths
    assert [names_of(paths[name], ids) for name in ("cat", "hen")] == [["cat", "domestic"], ["hen", "domestic"]]


def test_named_individuals_lie_below_their_kind(tmp_path: Path) -> None:
    ids = write_wordnet(tmp_path)
    classes = ["Lassie", "dog"]
    hierarchy = read_hierarchy(tmp_path, classes=classes)
    assert names_of(hierarchy.paths["Lassie"], ids) == ["lassie", "dog"]
    assert hierarchy.relatives(classes) == [[[1]], [[0]]], "a class may be the ancestor of another"


def test_what_wordnet_lacks_is_named_and_so_are_missing_files(tmp_path: Path) -> None:
    ids = write_wordnet(tmp_path)
    for lacking, said in (
        ("001.Crane", r"index\.noun: 1 of the classes not found: '001\.Crane'"),
        ("n99999999", r"data\.noun: 1 of the classes not found: 'n99999999'; .*WordNet 3\.0"),
    ):
        with pytest.raises(InputError, match=said):
            read_hierarchy(tmp_path, classes=[ids["jay"], lacking])
    for name in ("index.noun", "data.noun"):
        (tmp_path / name).unlink()
        with pytest.raises(InputError, match=rf"{name}: cannot be read .*WordNet 3"):
            read_hierarchy(tmp_path, classes=["jay", "robin"])


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("data.noun", "00009999 05 n 01 stub 0 003 @ 0000\n"),
        ("data.noun", "00009999 05 n zz stub 0 000 | \n"),
        ("index.noun", "jay n 1 two @ ~ 1 0 00009999\n"),
    ],
)
def test_a_line_in_another_format_is_named(tmp_path: Path, name: str, line: str) -> None:
    write_wordnet(tmp_path)
    text = LICENCE + line
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=rf"{name}, line 30: not a line of WordNet's"):
        read_hierarchy(tmp_path, classes=["jay", "robin"])


def test_a_file_cut_short_between_lines_is_refused(tmp_path: Path) -> None:
    ids = write_wordnet(tmp_path)
    data = tmp_path / "data.noun"
    lines = data.read_text().splitlines(keepends=True)
    data.write_text("".join(line for line in lines if not line.startswith(ids["thrush"][1:])))
    with pytest.raises(InputError, match=rf"no synset {ids['thrush']}"):
        read_hierarchy(tmp_path, classes=["jay", "robin"])


def test_classes_that_nothing_joins_and_a_circle_of_hypernyms_are_refused(tmp_path: Path) -> None:
    circle = {"top": (["top"], []), "a": (["a"], ["b", "top"]), "b": (["b"], ["a"]), "c": (["c"], ["top"])}
    apart = {"a": (["a"], []), "c": (["c"], [])}
    for nouns, said in ((apart, "no synset lies above all 2 classes"), (circle, "lies above itself")):
        write_wordnet(tmp_path, nouns)
        with pytest.raises(InputError, match=said):
            read_hierarchy(tmp_path, classes=["a", "c"])


TREE = "class,parent\ncat,feline\nlion,feline\nfeline,animal\ndog,canine\ncanine,animal\nanimal,\n"


def test_a_csv_gives_the_paths_of_the_classes(tmp_path: Path) -> None:
    found = read_hierarchy(write_csv(tmp_path, TREE), classes=["cat", "dog"]).paths
    assert found == {"cat": ("cat", "feline", "animal"), "dog": ("dog", "canine", "animal")}


def test_columns_may_stand_in_any_order_after_a_byte_order_mark(tmp_path: Path) -> None:
    path = write_csv(tmp_path, "\ufeffparent,note,class\n feline ,x, cat \nfeline,y,löwe\n")
    assert read_hierarchy(path, classes=["cat", "löwe"]).paths["löwe"] == ("löwe", "feline")


def test_classes_that_do_not_train_make_no_branch(tmp_path: Path) -> None:
    hierarchy = read_hierarchy(write_csv(tmp_path, TREE), classes=["cat", "lion", "dog"])
    assert hierarchy.relatives(["cat", "lion", "dog"]) == [[[1]], [[0]], [[0, 1]]]
    assert hierarchy.relatives(["cat", "dog"]) == [[[1]], [[0]]]


def test_roots_are_not_joined(tmp_path: Path) -> None:
    classes = ["1", "2", "3"]
    path = write_csv(tmp_path, "class,parent\n1,chair\n2,chair\n3,lamp\n")
    with pytest.raises(InputError, match=r"class '3' has no relative .* alone under its root 'lamp'"):
        read_hierarchy(path, classes=classes).relatives(classes)
    write_csv(tmp_path, "class,parent\n1,chair\n2,chair\n3,lamp\nlamp,furniture\nchair,furniture\n")
    assert read_hierarchy(path, classes=classes).relatives(classes) == [[[1]], [[0]], [[0, 1]]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,parent\ncat,feline\n", r"classes\.csv: expected a header with the columns class,parent; found"),
        ("", r"expected a header"),
        ("class,parent\ncat,feline\n,feline\n", r"line 3: the class is empty"),
        ("class,parent\ncat,feline\ncat,pet\n", r"line 3: 'cat' stands in line 2 already, with the parent 'fel"),
        ("class,parent\ndog,pet\npet,dog\ncat,pet\n", r"line 3: the parent 'dog' of 'pet' lies below it"),
        ("class,parent\ncat,dog\nx,x\n", r"line 3: the parent 'x' of 'x' lies below it"),
        ("class,parent\ndog,pet\n", r"1 of the classes not found: 'cat'; add a row"),
    ],
)
def test_a_csv_that_is_no_tree_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_hierarchy(write_csv(tmp_path, text), classes=["cat", "dog"])


def test_a_file_in_another_encoding_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "classes.csv"
    path.write_bytes("class,parent\nlöwe,feline\n".encode("latin-1"))
    with pytest.raises(InputError, match="UTF-8"):
        read_hierarchy(path, classes=["löwe"])


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
    tmp_path_factory: pytest.TempPathFactory, tree: tuple[dict[str, str], list[str]]
) -> None:
    parents, classes = tree
    folder = tmp_path_factory.mktemp("tree")
    rows = "".join(f"{node},{parent}\n" for node, parent in parents.items())
    relatives = read_hierarchy(write_csv(folder, f"class,parent\n{rows}"), classes=classes).relatives(classes)
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
