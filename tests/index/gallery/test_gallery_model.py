"""Any row of commands on changing files leaves the gallery that a plain dictionary says, with ids that never lie."""

import hashlib
import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from operator import attrgetter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from index.catalog.reader import read_catalog
from index.catalog.rows import CatalogRow
from index.errors import InputError
from index.gallery.gallery import Gallery
from index.gallery.selection import Selection
from index.gallery.verify import verify_gallery
from index.model.embedder import Embedder
from index.vectors.ann_config import INDEX_SETTING, AnnConfig
from index.versions.versions import find_version
from index.writing.build import add_to_gallery, build_gallery, remove_from_gallery, update_gallery
from index.writing.copying import tune_gallery
from index.writing.publishing import BuildReport
from tests.conftest import draw_image
from tests.index.galleries import SMALL, few_for_an_index
from tests.models import write_tiny_model

MAIN, SECOND, TAR = range(3)
JUNK = 0
Key = tuple[int, str]  # which source, and the path below its root
FOLDERS = ("a", "b/c")
NAMES = ("1.png", "2.png", "3.png")
contents = st.integers(0, 5)
paths = st.sampled_from([f"{folder}/{name}" for folder in FOLDERS for name in NAMES])
places = st.tuples(st.sampled_from((MAIN, MAIN, SECOND)), paths)
TOLD = attrgetter("id", "status", "sha256", "reason")
FEW = 4  # images that are enough for an index which is no scan


@pytest.fixture(autouse=True, scope="module")
def any_index_of_few() -> Iterator[None]:
    with few_for_an_index(FEW), pytest.MonkeyPatch.context() as patched:
        patched.setattr("index.vectors.ann_building._HELD_OUT_SHARE", 0.3)  # one at least
        yield


@dataclass(frozen=True)
class Contents:
    """Some image files, the first of them no image, with their hashes and the vectors that they have by themselves."""

    model: Path
    data: list[bytes]
    hashes: list[str]
    vectors: list[bytes | None]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Contents:
    model = write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.onnx")
    embedder = Embedder(model, threads=1)
    data, vectors = [b"<html>"], list[bytes | None]([None])
    for number in range(1, 6):
        stream = io.BytesIO()
        draw_image((40 * number, 250 - 40 * number, 90), seed=number, size=(24, 24)).save(stream, "png")
        data.append(stream.getvalue())
        pixels = embedder.preprocess(data[-1], name="drawn")
        vectors.append(embedder.embed_padded(pixels[None], batch_size=SMALL.batch_size)[0].tobytes())
    return Contents(model, data, [hashlib.sha256(one).hexdigest() for one in data], vectors)


class GalleryMachine(RuleBasedStateMachine):
    """Files on the disk, what the gallery should hold of them, and the commands."""

    dedup: str  # set where it is run, as is `drawn`
    drawn: Contents

    def __init__(self) -> None:
        super().__init__()
        self.place = Path(tempfile.mkdtemp(prefix="model-"))
        self.gallery = self.place / "g"
        self.roots = [self.place / "main", self.place / "second", self.place / "more.tar"]
        self.disk: dict[Key, int] = {}
        self.used = {MAIN}
        self.removed: set[Key] = set()
        self.rows: dict[Key, CatalogRow] = {}
        self.bytes_of_id: dict[int, str | None] = {}
        self.moves = self.commands = 0
        self.wished = AnnConfig()

    def teardown(self) -> None:
        shutil.rmtree(self.place)

    # The disk

    @initialize(others=st.lists(st.tuples(places, contents), max_size=6))
    def begin(self, others: list[tuple[Key, int]]) -> None:
        self.write((MAIN, "always.png"), 5)
        self.write((SECOND, "always.png"), 4)
        self.pack([1, 2])
        for key, content in others:
            self.write(key, content)
        self.check(self.build(), scanned={MAIN})

    @rule(key=places, content=contents)
    def write(self, key: Key, content: int) -> None:
        path = self.path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.drawn.data[content])
        self.disk[key] = content

    @rule(number=st.integers(0, 99))
    def touch(self, number: int) -> None:
        if files := self.files():
            os.utime(self.path(files[number % len(files)]))

    @rule(number=st.integers(0, 99), new=places)
    def rename(self, number: int, new: Key) -> None:
        if files := self.files():
            key = files[number % len(files)]
            self.path(new).parent.mkdir(parents=True, exist_ok=True)
            self.path(key).rename(self.path(new))
            self.disk[new] = self.disk.pop(key)

    @rule(number=st.integers(0, 99))
    def delete(self, number: int) -> None:
        if files := self.files():
            key = files[number % len(files)]
            self.path(key).unlink()
            del self.disk[key]

    @rule(members=st.lists(contents, min_size=1, max_size=4))
    def pack(self, members: list[int]) -> None:
        self.disk = {key: content for key, content in self.disk.items() if key[0] != TAR}
        with tarfile.open(self.roots[TAR], "w") as tar:
            for number, content in enumerate(members):
                info = tarfile.TarInfo(f"x/{number}.png")
                info.size = len(self.drawn.data[content])
                tar.addfile(info, io.BytesIO(self.drawn.data[content]))
                self.disk[TAR, f"more.tar/x/{number}.png"] = content

    # The commands

    @rule()
    def update(self) -> None:
        self.check(update_gallery(self.gallery, config=SMALL), scanned=self.used)

    @rule()
    def build_again(self) -> None:
        self.check(self.build(), scanned=self.used)

    @rule(number=st.integers(0, 99), new=places)
    def rename_and_update(self, number: int, new: Key) -> None:
        self.rename(number, new)
        self.update()

    @rule(source=st.sampled_from((MAIN, SECOND, TAR)))
    def add(self, source: int) -> None:
        report = add_to_gallery(self.gallery, [self.roots[source]], config=SMALL)
        self.used.add(source)
        self.check(report, scanned={source}, restored={key for key in self.disk if key[0] == source})

    @rule(number=st.integers(0, 99))
    def add_a_file_of_a_source(self, number: int) -> None:
        files = [key for key in self.files() if key[0] in self.used]
        if files:
            key = files[number % len(files)]
            report = add_to_gallery(self.gallery, [self.path(key)], config=SMALL)
            self.check(report, scanned=set(), restored={key})

    @precondition(lambda self: len(self.members()) > 2)
    @rule(number=st.integers(0, 99), by_id=st.booleans())
    def remove_one(self, number: int, by_id: bool) -> None:
        members = [key for key in self.members() if "always" not in key[1]]
        if not members:
            return
        key = members[number % len(members)]
        selection = Selection(ids=(self.rows[key].id,)) if by_id else Selection(patterns=(str(self.path(key)),))
        self.remove(selection, {key})

    @rule(pattern=st.sampled_from(("a/*", "*/1.png", "b", "*.tar/x/[01].png", "x")))
    def remove_by_pattern(self, pattern: str) -> None:
        chosen = {
            key
            for key in self.rows
            if key[1].startswith(pattern + "/")
            or any(fnmatchcase(path, pattern) for path in (key[1], str(self.path(key))))
        }
        ambiguous = "*" not in pattern and len({source for source, _ in chosen}) > 1
        if chosen and not ambiguous:
            self.remove(Selection(patterns=(pattern,)), chosen)
        else:
            with pytest.raises(InputError, match="there are several" if ambiguous else "is meant by"):
                remove_from_gallery(self.gallery, selection=Selection(patterns=(pattern,)), config=SMALL)

    @rule(
        index_type=st.sampled_from((None, "auto", "flat", "hnsw", "hnsw", "ivf")),
        recall_target=st.sampled_from((None, 0.5, 0.999)),
    )
    def tune(self, index_type: str | None, recall_target: float | None) -> None:
        given = {"index_type": index_type, "recall_target": recall_target}
        changes = {name: value for name, value in given.items() if value is not None}
        self.wished = replace(self.wished, **changes)
        report = tune_gallery(self.gallery, changes=changes)
        assert report.changed
        self.check(report, scanned=set())
        self.check_type()

    @rule(source=st.sampled_from((MAIN, SECOND)))
    def move_a_root(self, source: int) -> None:
        if source not in self.used:
            return
        self.moves += 1
        old = self.roots[source]
        self.roots[source] = old.rename(self.place / f"moved{self.moves}")
        self.check(update_gallery(self.gallery, roots={str(old): self.roots[source]}, config=SMALL), scanned=self.used)

    # What must be so

    def check(self, report: BuildReport, *, scanned: set[int], restored: Iterable[Key] = ()) -> None:
        """Compare the gallery with the disk where it was scanned, and elsewhere with what it was before."""
        before, restored = self.rows, set(restored)
        self.rows = self.read_rows()
        self.removed -= restored
        looked_at = {key for key in {*self.disk, *before} if key[0] in scanned} | restored
        self.removed -= {key for key in self.removed & looked_at if key not in self.disk}
        self.check_moves(before, looked_at, scanned=scanned, restored=restored)
        for key in {*self.rows, *before, *self.disk}:
            if key in looked_at:
                self.check_row(key, self.disk.get(key))
                if key in self.disk and key in before and before[key].status == "indexed" == self.rows[key].status:
                    same = before[key].sha256 == self.rows[key].sha256
                    assert not same or before[key].id == self.rows[key].id, f"{key} has lost its id"
            elif key not in before:
                assert key not in self.rows, f"{key} was not asked for"
            else:
                self.check_unseen_row(key, before[key])
        self.check_duplicates()
        self.check_index()
        self.check_ids()
        self.check_report(report)
        self.check_vectors()

    def check_row(self, key: Key, content: int | None) -> None:
        if content is None:
            assert key not in self.rows, f"{key} is no more"
            return
        row = self.rows[key]
        if key in self.removed:
            assert (row.status, row.reason) == ("skipped", "removed")
        elif content == JUNK:
            assert (row.status, row.reason) == ("skipped", "not-an-image")
        else:
            assert (row.status in self.good_statuses(), row.sha256) == (True, self.drawn.hashes[content]), row

    def check_unseen_row(self, key: Key, before: CatalogRow) -> None:
        """A row that was not scanned is as it was; only what had no vector may have been read again."""
        row = self.rows[key]
        if key in self.removed:
            assert (row.status, row.reason) == ("skipped", "removed")
        elif TOLD(row) != TOLD(before):
            assert before.status in ("skipped", "duplicate") or row.status == "duplicate", (before, row)
            if row.sha256 != before.sha256 and (row.source == TAR or row.reason == "unreadable"):
                return  # gone, or an archive that was changed: told by the next scan
            assert row.sha256 in (before.sha256, self.drawn.hashes[self.disk[key]]), (before, row)

    def check_moves(
        self, before: dict[Key, CatalogRow], looked_at: set[Key], *, scanned: set[int], restored: set[Key]
    ) -> None:
        """What vanished and appeared elsewhere has kept its id; what was taken out is out in its new place too."""
        for content in range(len(self.drawn.data)):
            sha256 = self.drawn.hashes[content]
            vanished = [
                row
                for key, row in before.items()
                if key in looked_at and key not in self.disk and row.sha256 == sha256
                if row.status in ("indexed", "duplicate") or (row.reason == "removed" and not restored)
            ]
            vanished.sort(key=lambda row: (row.status != "indexed", row.id))
            new = {
                key
                for key in looked_at
                if self.disk.get(key) == content and key not in self.removed
                if key not in before or before[key].status == "skipped" or before[key].sha256 != sha256
            }
            taken = vanished[: len(new)]
            ids = {self.rows[key].id for key in new}
            assert ids >= {row.id for row in taken if row.status == "indexed"}, (taken, new)
            out = {key for key in new if self.rows[key].reason == "removed"}
            assert len(out) == sum(row.reason == "removed" for row in taken), (taken, new)
            self.removed |= out

    def check_duplicates(self) -> None:
        indexed = {row.id: row.sha256 for row in self.rows.values() if row.status == "indexed"}
        if self.dedup == "exact":
            assert len(set(indexed.values())) == len(indexed), "two of the same bytes are indexed"
        for row in self.rows.values():
            assert (row.kept_id is not None) == (row.status == "duplicate")
            assert row.kept_id is None or indexed[row.kept_id] == row.sha256, row

    def check_index(self) -> None:
        """The gallery remembers what was wished for, and its index was made by it."""
        with read_catalog(find_version(self.gallery).folder / "catalog.sqlite") as catalog:
            assert AnnConfig.from_text(catalog.setting(INDEX_SETTING)) == self.wished
        described = Gallery.open(self.gallery).manifest.index
        assert {name: described[name] for name in asdict(self.wished)} == asdict(self.wished)
        assert described["type"] in ("flat", self.wished.index_type)

    def check_type(self) -> None:
        """An index that was just built is of the type wished for, unless there are too few images."""
        gallery = Gallery.open(self.gallery)
        described = gallery.manifest
        if not gallery.store.count_unindexed() and not described.counts["deleted"]:
            is_flat = self.wished.index_type in ("auto", "flat") or described.counts["indexed"] < FEW
            assert (described.index["type"] == "flat") == is_flat

    def check_ids(self) -> None:
        for row in self.rows.values():
            if row.status in ("indexed", "duplicate"):
                assert self.bytes_of_id.setdefault(row.id, row.sha256) == row.sha256, f"{row} had other bytes"

    def check_report(self, report: BuildReport) -> None:
        statuses = [row.status for row in self.rows.values()]
        counts = [statuses.count(name) for name in ("indexed", "duplicate", "skipped")]
        assert [report.indexed, report.duplicate, report.skipped] == counts
        assert report.found == len(self.rows) == sum(counts)
        assert report.version == find_version(self.gallery).name
        assert not (self.gallery / "building").exists()

    def check_vectors(self) -> None:
        opened = Gallery.open(self.gallery)
        content_of = {sha256: number for number, sha256 in enumerate(self.drawn.hashes)}
        indexed = [row for row in self.rows.values() if row.status == "indexed"]
        vectors = {row.id: self.drawn.vectors[content_of[row.sha256 or ""]] for row in indexed}
        assert opened.ids.tolist() == sorted(vectors)
        for key, vector in vectors.items():
            assert opened.vector(key).tobytes() == vector
        for key in list(vectors)[-2:]:
            assert vectors[opened.search(opened.vector(key), k=1)[0].id] == vectors[key]
        self.commands += 1
        if self.commands % 3 == 0:
            assert verify_gallery(self.gallery, sample=2, seed=0).problems == []

    # The means

    def build(self) -> BuildReport:
        sources = [self.roots[source] for source in sorted(self.used)]
        options = {"out": self.gallery, "dedup": self.dedup, "config": SMALL}
        return build_gallery(model_path=self.drawn.model, sources=sources, **options)

    def remove(self, selection: Selection, chosen: set[Key]) -> None:
        report = remove_from_gallery(self.gallery, selection=selection, config=SMALL)
        assert report.removed == len(chosen - self.removed)
        self.removed |= chosen
        self.check(report, scanned=set())

    def path(self, key: Key) -> Path:
        return (self.place if key[0] == TAR else self.roots[key[0]]) / key[1]

    def files(self) -> list[Key]:
        return sorted(key for key in self.disk if key[0] != TAR and "always" not in key[1])

    def members(self) -> list[Key]:
        return sorted(key for key, row in self.rows.items() if row.status in self.good_statuses())

    def good_statuses(self) -> tuple[str, ...]:
        return ("indexed",) if self.dedup == "off" else ("indexed", "duplicate")

    def read_rows(self) -> dict[Key, CatalogRow]:
        with read_catalog(find_version(self.gallery).folder / "catalog.sqlite") as catalog:
            roots = list(map(str, self.roots))
            source_of = {number: roots.index(source.location) for number, source in catalog.sources().items()}
            rows = list(catalog.rows())
        keyed = {(source_of[row.source], row.path): row for row in rows}
        assert len(keyed) == len(rows)
        return keyed


@pytest.mark.parametrize("dedup", ["off", "exact"])
@pytest.mark.parametrize(("examples", "steps"), [(2, 10), pytest.param(5, 30, marks=pytest.mark.slow)])
def test_any_row_of_commands(drawn: Contents, dedup: str, examples: int, steps: int) -> None:
    ready = type("Ready", (GalleryMachine,), {"drawn": drawn, "dedup": dedup})
    quiet = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )
    run_state_machine_as_test(ready, settings=quiet)
