"""The benchmark of the catalogue: the collection that it makes up, wrong usage; a small run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.indexing.index_catalog import main
from benchmarks.indexing.index_collection import Collection
from index.catalog.reader import read_catalog


def test_a_collection_is_changed_as_told_and_spread_over_all_of_it() -> None:
    before = {item.path: item for item in Collection(3000).items()}
    after = {item.path: item for item in Collection(3000, new=3, changed=2, moved=4, vanished=5).items()}
    gone, came = before.keys() - after.keys(), after.keys() - before.keys()
    assert [len(before), len(after), len(gone), len(came)] == [3000, 2998, 9, 7]
    assert sum("/moved/" in path for path in came) == 4
    assert sum(before[path] != after[path] for path in before.keys() & after.keys()) == 2
    assert len({item.label for item in before.values()}) == 1000
    assert len({path.partition("/")[0] for path in gone}) == 9


def test_a_small_catalogue_is_made_read_and_brought_up_to_date(tmp_path: Path, capfd) -> None:
    main(["--out", str(tmp_path), "--rows", "2000", "--edits", "5", "--moved", "7", "--repeats", "1"])
    results = json.loads((tmp_path / "record.json").read_text())["results"]
    assert set(results["update_seconds"]) == {"nothing changed", "5 new, 5 changed, 5 vanished", "7 moved"}
    assert set(results["commands_ms"]) > {"retrieval index list", "retrieval index info"}
    printed = capfd.readouterr().out
    assert (tmp_path / "table.md").read_text() in printed
    assert f"| counts by status | {results['reading_ms']['counts by status']['median']:.1f} (" in printed
    with read_catalog(tmp_path / "made-up-gallery" / "versions" / "000001" / "catalog.sqlite") as catalog:
        assert [catalog.count(status) for status in ("indexed", "skipped", "pending")] == [1980, 20, 0]
        assert len(list(catalog.rows(label="category-0500"))) == 2
    assert not (tmp_path / "made-up-work").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [(("--repeats", "0"), "--repeats must be at least 1"),
     (("--rows", "5000"), "--rows must be at least 200,000 with as many --edits and --moved")],
)  # fmt: skip
def test_wrong_usage_is_said_and_exits_with_two(options, message: str, tmp_path: Path, capsys) -> None:
    with pytest.raises(SystemExit) as error:
        main(["--out", str(tmp_path), *options])
    assert error.value.code == 2
    assert message in capsys.readouterr().err
