"""A file that is no backup, or a damaged or hostile one, is refused by name, and nothing is changed."""

import io
import json
import os
import random
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from index.errors import InputError
from index.labels.decisions import LabelDecision
from retrieval_app.review.backup import BackupError, back_up, restore
from retrieval_app.review.review_store import ReviewStore
from tests.conftest import draw_folder
from tests.retrieval_app.review.conftest import build
from tests.retrieval_app.review.test_jobs import picture
from tests.retrieval_app.review.test_moved_galleries import send, served

Members = dict[str, bytes]
Manifest = dict[str, Any]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    folder = tmp_path_factory.mktemp("made")
    draw_folder(folder / "images", per_class=2)
    gallery = build(folder, model=tiny_model)
    with served(gallery) as jobs:
        send(jobs, 1)
        send(jobs, 2, "boot")
    ReviewStore.of_gallery(gallery).decide([LabelDecision("a" * 64, "x", "keep", None, 1, "/x.jpg")])
    back_up(gallery, folder / "made.zip")
    return folder / "made.zip"


@pytest.fixture
def gallery(made: Path, tmp_path: Path) -> Path:
    """The gallery without what people made of it."""
    gallery = shutil.copytree(made.parent / "shop", tmp_path / "home" / "shop")
    shutil.rmtree(gallery / "annotations")
    return gallery


def files_below(folder: Path) -> dict[str, bytes]:
    found = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}
    return {str(path.relative_to(folder)): data for path, data in found.items()}


def check_refused(backup: Path, gallery: Path, *, match: str | None = None) -> None:
    before = files_below(gallery.parent.parent)
    with pytest.raises(BackupError, match=match) as caught:
        restore(backup, gallery)
    assert backup.name in str(caught.value)
    assert "nothing was changed" in str(caught.value)
    assert files_below(gallery.parent.parent) == before


def read_parts(made: Path) -> tuple[Members, Manifest]:
    with zipfile.ZipFile(made) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    return members, json.loads(members.pop("manifest.json"))


def write_parts(path: Path, members: Members, manifest: object, *, kind: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", kind) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data, compress_type=kind)
        archive.writestr(zipfile.ZipInfo("manifest.json"), json.dumps(manifest))
    return path


def test_the_parts_of_a_backup_written_again_are_a_backup(made: Path, gallery: Path, tmp_path: Path) -> None:
    members, manifest = read_parts(made)
    assert restore(write_parts(tmp_path / "again.zip", members, manifest), gallery).images["restored"] == 2


def test_another_file_a_folder_a_pipe_and_nothing_are_no_backup(gallery: Path, tmp_path: Path) -> None:
    for data in (b"", b"PK", b"PK\x05\x06" + bytes(18), b"no backup " * 100, picture(1)):
        (tmp_path / "other.zip").write_bytes(data)
        check_refused(tmp_path / "other.zip", gallery, match="no backup")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "pipe", "nothing"):
        with pytest.raises(BackupError, match=r"no such file|a folder"):
            restore(tmp_path / name, gallery)


def test_a_backup_that_is_cut_off_anywhere_is_refused(made: Path, gallery: Path, tmp_path: Path) -> None:
    data = made.read_bytes()
    for end in (len(data) // 20, len(data) * 3 // 5, len(data) - 1):
        (tmp_path / "cut.zip").write_bytes(data[:end])
        check_refused(tmp_path / "cut.zip", gallery)


def test_a_bit_that_turned_is_noticed_wherever_it_counts(made: Path, gallery: Path, tmp_path: Path) -> None:
    data, chance = made.read_bytes(), random.Random(0)
    with zipfile.ZipFile(made) as archive:
        places = [info.header_offset + 30 + len(info.filename) + 40 for info in archive.infolist()]
    for place in places + [chance.randrange(len(data) * 3 // 4) for _ in range(10)]:
        turned = bytearray(data)
        turned[place] ^= 1 << chance.randrange(8)
        (tmp_path / "turned.zip").write_bytes(turned)
        before = files_below(gallery)
        try:
            restore(tmp_path / "turned.zip", shutil.copytree(gallery, tmp_path / f"twin{place}"))
        except BackupError:
            assert files_below(tmp_path / f"twin{place}") == before
        else:  # it was in what is not read, such as a time
            assert len(list((tmp_path / f"twin{place}" / "annotations" / "added").rglob("*.png"))) == 2


Change = Callable[[Members, Manifest], object]
Decisions = list[dict[str, Any]]
IMAGES = [
    {"image_id": 1, "sha256": "a" * 64, "label": None, "path": "x"},
    {"image_id": 2, "sha256": "b" * 64, "label": None, "path": "y"},
]


def spoil_step(**values: Any) -> Change:
    """A first step that has other values."""

    def spoil(members: Members, manifest: Manifest) -> None:
        steps: Decisions = json.loads(members["decisions.json"])
        steps[0].update(values)
        members["decisions.json"] = json.dumps(steps).encode()

    return spoil


def spoil_label(**values: Any) -> Change:
    label = {
        "sha256": "a" * 64,
        "label": "x",
        "decision": "keep",
        "new_label": None,
        "image_id": 1,
        "path": "/x.jpg",
        "decided_at": "",
    }
    return spoil_step(decisions=[{**label, **values}])


def spoil_groups(*groups: object) -> Change:
    return spoil_step(decisions=list(groups))


def make_group(images: object = IMAGES, keep: object = (1,)) -> dict[str, Any]:
    return {"images": images, "decision": "duplicates", "keep": keep, "decided_at": ""}


def set_image(**values: Any) -> Change:
    return spoil_groups(make_group([{**IMAGES[0], **values}, IMAGES[1]], []))


def swap_images(members: Members, manifest: Manifest) -> None:
    first, second = (name for name in members if name.startswith("files/"))
    members[first], members[second] = members[second], members[first]


CHANGES: dict[str, Change] = {
    "swapped images": swap_images,
    "an unnamed member": lambda members, manifest: members.update({"files/more": b"x"}),
    "no decisions": lambda members, manifest: members.pop("decisions.json"),
    "decisions that are none": lambda members, manifest: members.update({"decisions.json": b"x" * 4096}),
    "deep decisions": lambda members, manifest: members.update({"decisions.json": b"[" * 200_000}),
    "a step without decisions": spoil_step(decisions=[]),
    "a step about both": spoil_groups(make_group(), {"sha256": "a" * 64, "label": "x", "decision": "keep"}),
    "a time that is none": spoil_step(decided_at="yesterday"),
    "a time without its zone": spoil_step(decided_at="2026-01-01T10:00:00"),
    "a name that is none": spoil_step(decided_by=7),
    "a share beyond all": spoil_label(others_right=1.5),
    "a share of text": spoil_label(others_right="half"),
    "a probability beyond all": spoil_label(p_right=2),
    "a probability of text": spoil_label(p_right="half"),
    "a source that is none": spoil_label(source="oracle"),
    "a wrong hash": spoil_label(sha256="A"),
    "a hash that is a number": spoil_label(sha256=5),
    "a label that is a number": spoil_label(label=1),
    "another word": spoil_label(decision="destroy"),
    "a change to nothing": spoil_label(decision="change"),
    "a wrong id": spoil_label(image_id=-1),
    "an id beyond all": spoil_label(image_id=1 << 63),
    "an id of text": spoil_label(image_id="one"),
    "a number as path": spoil_label(path=5),
    "images to keep of no group": spoil_groups(make_group(keep=[9])),
    "one group twice in a step": spoil_groups(make_group(), make_group()),
    "a group of one": spoil_groups(make_group(IMAGES[:1])),
    "text for ids": spoil_groups(make_group(keep="1")),
    "an id of a group as text": set_image(image_id="one"),
    "a path of a group that is none": set_image(path=None),
    "a group that is none": spoil_groups(make_group(None)),
    "another version": lambda members, manifest: manifest.update(format_version=99),
    "an image that is not there": lambda members, manifest: manifest["images"].update({"x.png": "0" * 64}),
    "a hash of an image that is none": lambda members, manifest: manifest["images"].update({"x.png": 7}),
    "removals that are none": lambda members, manifest: manifest.update(removed=[]),
    "removals of no image": lambda members, manifest: manifest["removed"].update({"x": ["/a"]}),
    "a removal that is none": lambda members, manifest: manifest["removed"].update({"a" * 64: [7]}),
    "a log that is none": lambda members, manifest: members.update({"log.jsonl": b"{}\n"}),
    "a deep log": lambda members, manifest: members.update({"log.jsonl": b"[" * 200_000 + b"\n"}),
}
CLIMBS = (
    *("../../evil.png", "/etc/evil.png", "a/../../evil.png", "", "a\0b.png", "x" * 300, "a/" * 20 + "b.png"),
    "\ud800.png",
)


def test_a_hostile_backup_is_refused_and_changes_nothing(made: Path, gallery: Path, tmp_path: Path) -> None:
    climbs: list[Change] = [
        lambda _, manifest, path=path: manifest["images"].update({path: manifest["images"].popitem()[1]})
        for path in CLIMBS
    ]
    for number, change in enumerate((*CHANGES.values(), *climbs)):
        members, manifest = read_parts(made)
        change(members, manifest)
        check_refused(write_parts(tmp_path / f"hostile {number}.zip", members, manifest), gallery)


def test_a_backup_of_a_pre_release_is_called_so(made: Path, gallery: Path, tmp_path: Path) -> None:
    members, manifest = read_parts(made)
    del manifest["images"]
    old = write_parts(tmp_path / "old.zip", members, {**manifest, "sent": []})
    check_refused(old, gallery, match="made by a pre-release: .*; keep the file")


def test_a_backup_never_replaces_a_file_that_appeared_meanwhile(made: Path, tmp_path: Path) -> None:
    def write_first(done: int, total: int) -> None:
        (tmp_path / "new.zip").write_bytes(b"another's")

    with pytest.raises(InputError, match="there is such a file already; name another, or give --overwrite"):
        back_up(made.parent / "shop", tmp_path / "new.zip", progress=write_first)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("new.zip", b"another's")]


def test_a_manifest_of_another_format_is_refused_in_one_line(made: Path, gallery: Path, tmp_path: Path) -> None:
    members, manifest = read_parts(made)
    old = {"format": "retrieval-backup", "format_version": 99, "images": []}
    for given, match in (
        (old, "another format version"),
        ({"format": "other"}, "no backup"),
        ([], "no backup"),
        (manifest | {"more\x1b[2J": 1, "images": 1}, "images: Input should be a valid dict"),
    ):
        path = write_parts(tmp_path / "other.zip", members, given)
        with pytest.raises(BackupError, match=match) as caught:
            restore(path, gallery)
        assert str(caught.value).isprintable()


def test_packed_members_are_refused_before_they_are_unpacked(made: Path, gallery: Path, tmp_path: Path) -> None:
    members, manifest = read_parts(made)
    members["files/huge"] = bytes(50 << 20)
    packed = write_parts(tmp_path / "packed.zip", members, manifest, kind=zipfile.ZIP_DEFLATED)
    assert packed.stat().st_size < 1 << 20
    check_refused(packed, gallery, match="more than the file")


def test_members_that_lie_over_each_other_are_refused(gallery: Path, tmp_path: Path) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("manifest.json", "{}" + " " * 100_000)
        info = archive.infolist()[0]
        for number in range(50):
            again = zipfile.ZipInfo(f"added/{number}.png")
            again.header_offset, again.file_size, again.compress_size = 0, info.file_size, info.compress_size
            again.CRC = info.CRC
            archive.filelist.append(again)
            archive.NameToInfo[again.filename] = again
    (tmp_path / "over.zip").write_bytes(stream.getvalue())
    check_refused(tmp_path / "over.zip", gallery, match="more than the file")


def test_images_of_any_name_come_back_and_equal_ones_are_kept_once(gallery: Path, tmp_path: Path) -> None:
    names = ("boot/a.jpg", "漢字/a%20b.jpg", "caf\udce9.jpg", "a\nb.jpg", "a\\b.jpg")
    people = gallery / "annotations" / "added"
    for name in names:
        (people / name).parent.mkdir(parents=True, exist_ok=True)
        (people / name).write_bytes(picture(5))
    report = back_up(gallery, tmp_path / "names.zip")
    assert (report.images, report.notes) == (5, [])
    with zipfile.ZipFile(tmp_path / "names.zip") as archive:
        assert sum(name.startswith("files/") for name in archive.namelist()) == 1
    shutil.rmtree(people)
    assert restore(tmp_path / "names.zip", gallery).images["restored"] == 5
    assert {str(path.relative_to(people)) for path in people.rglob("*.jpg")} == set(names)
