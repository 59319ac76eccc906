"""Which images of a dataset train and which are searched: whose photos, whose classes, and who may find whom."""

from __future__ import annotations

import csv
import io
import tarfile
from pathlib import Path

import pytest

from benchmarks.noise.splits import SPLITS, list_split

GROCERIES = {
    "apple": "train train val test",
    "kiwi": "train test",
    "milk": "train val test test",
    "oat": "train test",
}
CARS = {"train": "1_Audi_A4 2_Audi_S6 3_BMW_X5 4_Seat_Ibiza", "test": "5_VW_Golf 6_VW_Polo"}


def _add(tar: tarfile.TarFile, name: str, content: bytes = b"photo") -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Archives as those of the shared folder, with files that nobody decodes; where they are unpacked."""
    data = tmp_path / "shared" / "data"
    data.mkdir(parents=True)
    monkeypatch.setenv("RETRIEVAL_SHARED", str(tmp_path / "shared"))
    table = io.StringIO()
    writer = csv.writer(table)
    writer.writerow(["path", "label", "split", "coarse"])
    with tarfile.open(data / "groceries.tar", "w") as tar:
        for label, parts in GROCERIES.items():
            for number, part in enumerate(parts.split()):
                writer.writerow([f"{label}/{part}_{number}.jpg", label, part, "0"])
                _add(tar, f"groceries/{label}/{part}_{number}.jpg")
        _add(tar, "groceries/labels.csv", table.getvalue().encode())
    with tarfile.open(data / "cars.tar", "w") as tar:
        for part, names in CARS.items():
            for name in names.split():
                for number in range(10):
                    _add(tar, f"cars/{part}/{name}/{number}.jpg")
    return tmp_path / "work"


def _parts(name: str, work: Path) -> tuple[list[str], list[str]]:
    split = list_split(name, work=work)
    assert all(record.path.is_file() for part in (split.train, split.test) for record in part)
    return [record.label for record in split.train], [record.label for record in split.test]


def test_official_test_photos_of_groceries_search_the_photos_that_train(work: Path) -> None:
    split = list_split("groceries-seen", work=work)
    asked = [
        record.path.name for record, found in zip(split.test, split.is_gallery or (), strict=True) if not found
    ]
    gallery = [record for record, found in zip(split.test, split.is_gallery or (), strict=True) if found]
    assert gallery == list(split.train)
    assert {name.partition("_")[0] for name in asked} == {"test"}
    assert {record.path.name.partition("_")[0] for record in split.train} == {"train", "val"}
    assert (len(split.train), len(asked)) == (7, 5)


@pytest.mark.parametrize(("name", "trains"), [("", {"apple", "milk"}), ("-reversed", {"kiwi", "oat"})])
def test_every_other_class_of_groceries_trains_and_the_others_are_asked_for_in_their_own_training_photos(
    work: Path, name: str, trains: set[str]
) -> None:
    split = list_split(f"groceries-disjoint{name}", work=work)
    assert {record.label for record in split.train} == trains
    assert len(split.train) == sum(len(GROCERIES[label].split()) for label in trains)
    assert {record.label for record in split.test} == GROCERIES.keys() - trains
    for record, found in zip(split.test, split.is_gallery or (), strict=True):
        assert record.path.name.startswith("train" if found else "test")


def test_cars_train_on_one_folder_and_search_the_other_either_way_or_within_the_first(work: Path) -> None:
    there, back = _parts("cars", work), _parts("cars-reversed", work)
    assert there == back[::-1]
    assert set(there[1]) == {"5_VW_Golf", "6_VW_Polo"}
    seen = _parts("cars-seen", work)
    assert set(seen[0]) == set(seen[1]) == set(there[0])
    assert [part.count("3_BMW_X5") for part in seen] == [7, 3]


def test_every_other_make_of_the_cars_that_train_is_searched_by_the_rest(work: Path) -> None:
    there, back = _parts("cars-makes", work), _parts("cars-makes-reversed", work)
    assert set(there[0]) == {"1_Audi_A4", "2_Audi_S6", "4_Seat_Ibiza"}
    assert set(there[1]) == {"3_BMW_X5"}
    assert there == back[::-1]


def test_every_split_of_disjoint_classes_has_another_direction() -> None:
    assert {name.removesuffix("-reversed") for name in SPLITS if name.endswith("-reversed")} == {
        name for name in SPLITS if not name.endswith(("-reversed", "-seen"))
    }
