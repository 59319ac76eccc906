import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from index.errors import GalleryError, InputError
from index.faiss_library import import_faiss
from index.gallery.gallery import Gallery
from index.gallery.selection import Selection
from index.gallery.verify import verify_gallery
from index.repair.repair import RepairReport, repair_gallery, rollback_gallery
from index.versions.annotations import added_folder
from index.versions.versions import find_version
from index.writing.build import add_to_gallery, build_gallery, remove_from_gallery, update_gallery
from index.writing.copying import tune_gallery
from tests.conftest import draw_folder, draw_image
from tests.index.galleries import ROOT, SMALL, build, build_ann, few_for_an_index, flip, rows, stopped_at, vectors
from tests.kills import Command, Moment, read_state_apart, run_command
from tests.models import write_tiny_model

FILES = (
    *("CURRENT", "gallery.json", "version/part.json", "version/manifest.json", "version/vectors/00000.npy"),
    *("version/vectors/00001.npy", "version/ids/00000.npy", "version/model.onnx", "version/index.faiss"),
    "version/deleted.npy",
)
FAST = ("CURRENT", "version/manifest.json", "version/index.faiss", "version/deleted.npy")
Found = dict[str, list[tuple[int, float]]]


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A gallery with an index, in two versions: the second one has another shard and a removed image."""
    folder = tmp_path_factory.mktemp("repair")
    images = draw_folder(folder / "images", per_class=10)
    (images / "red" / "junk.jpg").write_bytes(b"<html>")
    build_ann(images, folder / "g", tiny_model)
    for number in range(3):
        draw_image((200, 9, 200), seed=number).save(images / f"late{number}.png")
    (images / "blue" / "0.jpg").unlink()
    with few_for_an_index():
        update_gallery(folder / "g", config=SMALL)
    return folder / "g"


@pytest.fixture
def gallery(built: Path, tmp_path: Path) -> Path:
    """A copy of it, over the same images; its versions share no file."""
    shutil.copytree(built, tmp_path / "g")
    return tmp_path / "g"


def place(gallery: Path, name: str) -> Path:
    return gallery / name.replace("version/", f"versions/{find_version(gallery).name}/")


def search(gallery: Path) -> Found:
    opened = Gallery.open(gallery)
    hits = {str(key): opened.search(opened.vector(int(key)), k=5) for key in opened.ids}
    return {key: [(hit.id, round(hit.score, 5)) for hit in some] for key, some in hits.items()}


def mend(gallery: Path, **options: object) -> RepairReport:
    with few_for_an_index():
        report = repair_gallery(gallery, config=SMALL, **options)
    assert verify_gallery(gallery).problems == []
    return report


def contents(gallery: Path) -> dict[str, str | None]:
    return {row.path: row.sha256 for row in rows(gallery)}


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *((name, flip) for name in FAST),
        ("version/vectors/00000.npy", truncate),
        ("version/part.json", Path.unlink),
        *(pytest.param(name, flip, marks=pytest.mark.slow) for name in FILES if name not in FAST),
        *(pytest.param(name, Path.unlink, marks=pytest.mark.slow) for name in FILES if name != "version/part.json"),
    ],
)
def test_a_gallery_is_whole_again_whatever_is_damaged(gallery: Path, name: str, damage: Callable[[Path], None]) -> None:
    before, found, stored = rows(gallery), search(gallery), vectors(gallery)
    damage(place(gallery, name))
    report = mend(gallery)
    assert report.damaged
    assert (rows(gallery), search(gallery), vectors(gallery)) == (before, found, stored)
    assert (report.indexed, report.lost) == (len(stored), 0)
    assert not mend(gallery).damaged
    with few_for_an_index():
        assert not update_gallery(gallery, config=SMALL).changed
        tune_gallery(gallery)
    assert [row.id for row in rows(gallery)] == [row.id for row in before]


@pytest.mark.parametrize("damage", [flip, Path.unlink])
def test_a_lost_catalogue_leads_back_to_the_version_before(gallery: Path, damage: Callable[[Path], None]) -> None:
    before = {row.path: row.id for row in rows(gallery)}
    damage(place(gallery, "version/catalog.sqlite"))
    report = mend(gallery)
    assert (report.version, report.action, report.indexed) == ("000001", "used", 30)
    assert "version 000002 is lost" in report.notes[0]
    with few_for_an_index():
        update_gallery(gallery, config=SMALL)
    after = {row.path: row.id for row in rows(gallery)}
    assert after.keys() == before.keys()
    assert all(number == before[path] or number > max(before.values()) for path, number in after.items())


def test_uploads_unknown_to_an_older_version_are_told(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    gallery, uploads = tmp_path / "g", added_folder(tmp_path / "g")
    build(image_folder, gallery, tiny_model)
    uploads.mkdir(parents=True)
    draw_image((9, 8, 7), seed=1).save(uploads / "1.png")
    add_to_gallery(gallery, [uploads], config=SMALL)
    flip(place(gallery, "version/catalog.sqlite"))
    report = mend(gallery)
    assert report.version == "000001"
    assert f"what people sent is in {uploads}: `retrieval index add`" in report.notes[1]
    assert add_to_gallery(gallery, [uploads], config=SMALL).indexed == 16


def test_without_any_catalogue_nothing_is_touched(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    build(image_folder, tmp_path / "g", tiny_model)
    place(tmp_path / "g", "version/catalog.sqlite").unlink()
    with pytest.raises(GalleryError, match=r"lost in every version; build .* another folder, and move annotations/"):
        mend(tmp_path / "g")
    assert place(tmp_path / "g", "version/vectors/00000.npy").is_file()


def test_a_lost_model_is_asked_for(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    build(image_folder, tmp_path / "g", tiny_model)
    before = rows(tmp_path / "g")
    truncate(place(tmp_path / "g", "version/model.onnx"))
    with pytest.raises(GalleryError, match=r"its model is damaged or missing in every version.*--model"):
        mend(tmp_path / "g")
    with pytest.raises(GalleryError, match="run this again with --model"):
        mend(tmp_path / "g", model_path=write_tiny_model(tmp_path / "other.onnx", seed=3))
    assert mend(tmp_path / "g", model_path=tiny_model).embedded == 0
    assert rows(tmp_path / "g") == before


def test_a_version_that_nothing_knows_is_told_of(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    build(image_folder, tmp_path / "g", tiny_model)
    place(tmp_path / "g", "version/part.json").unlink()
    current = (tmp_path / "g" / "CURRENT").read_bytes()
    (tmp_path / "g" / "CURRENT").unlink()
    with pytest.raises(
        GalleryError, match=r"CURRENT and part\.json in its versions are damaged or missing.*from a copy"
    ):
        mend(tmp_path / "g")
    (tmp_path / "g" / "CURRENT").write_bytes(current)
    assert mend(tmp_path / "g").action == "used"


@pytest.mark.parametrize("is_empty", [False, True])
def test_images_of_a_missing_disk_return(tmp_path: Path, tiny_model: Path, image_folder: Path, is_empty: bool) -> None:
    gallery = tmp_path / "g"
    build(image_folder, gallery, tiny_model)
    more = tmp_path / "more"
    more.mkdir()
    draw_image((200, 9, 200), seed=1).save(more / "late.png")
    add_to_gallery(gallery, [more], config=SMALL)
    before = rows(gallery)
    flip(place(gallery, "version/vectors/00000.npy"))
    away = shutil.move(image_folder, tmp_path / "away")
    if is_empty:
        image_folder.mkdir()
    report = mend(gallery)
    assert (report.indexed, report.lost) == (1, 15)
    assert "`retrieval index update` adds what cannot be read now" in report.notes[0]
    with pytest.raises(InputError, match="nothing is left in it" if is_empty else "no such folder"):
        update_gallery(gallery, config=SMALL)
    if is_empty:
        image_folder.rmdir()
    shutil.move(away, image_folder)
    update_gallery(gallery, config=SMALL)
    assert rows(gallery) == before


def test_lost_vectors_are_said_and_removed_images_stay_so(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    gallery = tmp_path / "g"
    build(image_folder, gallery, tiny_model)
    remove_from_gallery(gallery, selection=Selection(ids=(5,)), config=SMALL)
    flip(place(gallery, "version/vectors/00000.npy"))
    changed, gone = (next(image_folder.glob(f"red/{number}.*")) for number in (1, 2))
    draw_image((7, 7, 7), seed=7).save(changed)
    gone.unlink()
    report = mend(gallery)
    assert (report.indexed, report.embedded, report.lost) == (13, 13, 1)
    update_gallery(gallery, config=SMALL)
    ids = {row.path: row.id for row in rows(gallery)}
    assert f"red/{gone.name}" not in ids
    assert ids[f"red/{changed.name}"] > 15  # an id stands for the same bytes for ever
    assert 5 not in Gallery.open(gallery).ids


def test_vectors_come_from_the_cache(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    cached = replace(SMALL, cache=tmp_path / "cache")
    build_gallery(model_path=tiny_model, sources=[image_folder], out=tmp_path / "g", config=cached)
    stored = vectors(tmp_path / "g")
    flip(place(tmp_path / "g", "version/vectors/00000.npy"))
    computed: list[object] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("index.model.embedder.Embedder.embed_padded", lambda *given: computed.append(given))
        assert repair_gallery(tmp_path / "g", config=cached).embedded == 15
    assert (computed, vectors(tmp_path / "g")) == ([], stored)


def test_unfinished_work_that_is_damaged_goes_and_intact_work_stays(gallery: Path) -> None:
    with stopped_at("writing.pending._embed"):
        update_gallery(gallery)
    assert not mend(gallery).damaged
    (gallery / "CURRENT").unlink()
    assert mend(gallery).damaged
    assert (gallery / "building" / "plan.json").is_file()
    (gallery / "building" / "catalog.sqlite").write_bytes(b"no database" * 1000)
    with pytest.raises(GalleryError, match=r"the unfinished work is .*`retrieval index repair` throws it away"):
        update_gallery(gallery)
    assert mend(gallery).damaged
    with few_for_an_index():
        assert not update_gallery(gallery).changed


@pytest.mark.parametrize(
    "moment",
    ["writing.pending._save_checkpoint", "versions.versions.set_current", "writing.workspace.Workspace._clean_up"],
)
def test_a_repair_that_was_stopped_is_gone_on_with(gallery: Path, moment: str) -> None:
    before, found = rows(gallery), search(gallery)
    for path in gallery.glob("versions/*/vectors/0000*.npy"):
        flip(path)
    with stopped_at(moment):
        mend(gallery)
    mend(gallery)
    assert (rows(gallery), search(gallery)) == (before, found)
    with few_for_an_index():
        assert not update_gallery(gallery, config=SMALL).changed
    assert not (gallery / "building").exists()


KILLED_AT = 6  # steps, of all that there are


def kill_while_mending(place: Path) -> None:
    """Kill repairs and rollbacks of copies of a gallery at many steps; run again, they end as undisturbed ones."""
    import_faiss()
    damaged = place / "damaged"
    for path in damaged.glob("versions/*/vectors/0000*.npy"):
        flip(path)
    commands = {
        "repair": (damaged, Command("repair", "repair", lambda gallery: repair_gallery(gallery, config=SMALL))),
        "rollback": (place / "g", Command("rollback", "rollback", rollback_gallery)),
    }
    for name, (origin, command) in commands.items():
        shutil.copytree(origin, place / name / "g")
        ended = run_command(command, place / name / "g")
        assert ended.error is None, ended.error
        whole = read_state_apart(place / name / "g")
        chosen = random.Random(0).sample(sorted(ended.steps), k=min(KILLED_AT, len(ended.steps)))
        for number, kind in enumerate(chosen):
            gallery = place / name / str(number) / "g"
            shutil.copytree(origin, gallery)
            if run_command(command, gallery, Moment(step=(kind, ended.steps[kind]))) is None:
                version = find_version(gallery).name
                if name == "repair" or version == "000002":
                    again = run_command(command, gallery)
                    assert again.error is None, (kind, again.error)
            state = read_state_apart(gallery)
            assert state.differences(whole) == [], kind


@pytest.mark.slow
def test_repairs_and_rollbacks_killed_at_any_step_end_when_they_are_run_again(built: Path, tmp_path: Path) -> None:
    for name in ("g", "damaged"):
        shutil.copytree(built, tmp_path / name)
    code = (
        "import sys; from pathlib import Path; from tests.index.repair.test_repair import kill_while_mending; "
        "kill_while_mending(Path(sys.argv[1]))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, tmp_path],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr


def test_duplicates_stay_with_their_images_or_replace_one(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    gallery = tmp_path / "g"
    draw_image((9, 9, 99), seed=5, size=(100, 100)).save(image_folder / "large.png")
    for name in ("large.png", "red/1.png"):
        shutil.copy(image_folder / name, image_folder / f"z-{Path(name).name}")
    build(image_folder, gallery, tiny_model, dedup="exact")
    before = rows(gallery)
    assert sum(row.status == "duplicate" for row in before) == 2
    flip(place(gallery, "version/vectors/00000.npy"))
    with stopped_at("writing.pending._save_checkpoint"):
        mend(gallery)
    mend(gallery)
    assert rows(gallery) == before
    flip(place(gallery, "version/vectors/00000.npy"))
    report = repair_gallery(gallery, config=replace(SMALL, max_pixels=64 * 48))
    assert (report.indexed, report.lost) == (15, 1)
    assert verify_gallery(gallery).problems == []


def test_another_gallerys_version_is_left(gallery: Path, tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    build(image_folder / "red", tmp_path / "other", tiny_model)
    before = rows(gallery)
    shutil.copytree(tmp_path / "other" / "versions" / "000001", gallery / "versions" / "000009")
    (gallery / "CURRENT").unlink()
    assert mend(gallery).version == find_version(gallery).name == "000002"
    assert rows(gallery) == before


def flip_alone(path: Path) -> None:
    """Damage a file that other versions may share, in this one alone."""
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)
    flip(path)


@pytest.fixture
def grown(tmp_path: Path, tiny_model: Path, image_folder: Path) -> Path:
    """Two versions: the second one has three images more, of the ids 16, 17 and 18."""
    build(image_folder, tmp_path / "g", tiny_model)
    for number in range(3):
        draw_image((200, 9, 200), seed=number).save(image_folder / f"late{number}.png")
    update_gallery(tmp_path / "g", config=SMALL)
    return tmp_path / "g"


def test_the_version_before_is_current_again_and_ids_go_on(grown: Path, image_folder: Path) -> None:
    report = rollback_gallery(grown)
    assert (report.action, report.version, report.indexed) == ("back from version 000002", "000001", 15)
    assert verify_gallery(grown).problems == []
    assert len(Gallery.open(grown).ids) == 15
    assert update_gallery(grown, config=SMALL).version == "000003"
    assert {row.id for row in rows(grown) if row.path.startswith("late")} == {19, 20, 21}
    assert sorted(os.listdir(grown / "versions")) == ["000001", "000003"]


def test_ids_of_a_version_that_was_left_are_not_given_again_even_where_it_is_damaged(grown: Path) -> None:
    flip_alone(grown / "versions" / "000002" / "catalog.sqlite")
    (grown / "versions" / "000002" / "manifest.json").unlink()
    rollback_gallery(grown)
    update_gallery(grown, config=SMALL)
    assert {row.id for row in rows(grown) if row.path.startswith("late")} == {19, 20, 21}


def test_a_version_that_is_not_sound_is_passed_over(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    gallery = tmp_path / "g"
    build(image_folder, gallery, tiny_model)
    held = Gallery.open(gallery)  # a version that somebody reads is not removed
    for number in range(2):
        draw_image((200, 9, 200), seed=number).save(image_folder / f"late{number}.png")
        update_gallery(gallery, config=SMALL)
    flip_alone(gallery / "versions" / "000002" / "catalog.sqlite")
    report = rollback_gallery(gallery)
    assert (report.action, report.version, held.version) == ("back from version 000003", "000001", "000001")
    assert report.damaged == [
        f"{gallery}/versions/000002/catalog.sqlite: damaged: its SHA-256 is not the one in the manifest"
    ]


def test_nothing_is_changed_where_no_version_before_is_sound(grown: Path) -> None:
    flip_alone(grown / "versions" / "000001" / "ids" / "00000.npy")
    with pytest.raises(
        GalleryError, match=r"current one is whole \(.*ids/00000\.npy: damaged.*\); repair the gallery with `"
    ):
        rollback_gallery(grown)
    assert find_version(grown).name == "000002"
    assert verify_gallery(grown).problems == []


def test_unfinished_work_and_what_was_about_to_be_published_do_not_undo_it(grown: Path, image_folder: Path) -> None:
    draw_image((1, 9, 200), seed=7).save(image_folder / "last.png")
    with stopped_at("versions.versions.set_current"):
        update_gallery(grown, config=SMALL)
    assert rollback_gallery(grown).version == "000001"
    (image_folder / "last.png").unlink()
    for number in range(3):
        (image_folder / f"late{number}.png").unlink()
    report = update_gallery(grown, config=SMALL)
    assert (report.version, report.changed, report.indexed) == ("000001", False, 15)


@pytest.mark.parametrize("name", ["CURRENT", "versions/000002/manifest.json"])
def test_a_gallery_that_cannot_be_opened_goes_back_too(grown: Path, name: str) -> None:
    flip_alone(grown / name)
    with pytest.raises(GalleryError, match="`retrieval index rollback`"):
        Gallery.open(grown)
    assert rollback_gallery(grown, to="1").version == "000001"
    assert verify_gallery(grown).problems == []
