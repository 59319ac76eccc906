from contextlib import suppress
from pathlib import Path

import pytest

from index.durable import check_own_files, replacing
from index.errors import InputError

NAMES = ("table.csv", "page.html")
HEADER = ("rank", "path")


@pytest.mark.parametrize("name", NAMES)
def test_a_file_of_somebody_else_is_in_the_way(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(InputError, match=rf"{name}: exists already, and is not what this command writes there"):
        check_own_files(tmp_path, NAMES, header=HEADER)


def test_what_the_command_wrote_before_may_be_replaced(tmp_path: Path) -> None:
    check_own_files(tmp_path / "none", NAMES, header=HEADER)
    check_own_files(tmp_path, NAMES, header=HEADER)
    (tmp_path / "table.csv").write_text("rank,path,more\n1,a,b\n")
    (tmp_path / "page.html").write_text("page")
    check_own_files(tmp_path, NAMES, header=HEADER)


def test_what_is_not_finished_hits_nobodys_file(tmp_path: Path) -> None:
    for name in ("out.csv.tmp", ".out.csv.tmp", "out.csv.1.tmp"):
        (tmp_path / name).write_text("mine")
    with suppress(KeyboardInterrupt), replacing(tmp_path / "out.csv") as temporary:
        temporary.write_text("a part")
        raise KeyboardInterrupt
    assert not (tmp_path / "out.csv").exists()
    with replacing(tmp_path / "out.csv") as temporary:
        temporary.write_text("whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".out.csv.tmp",
        "out.csv",
        "out.csv.1.tmp",
        "out.csv.tmp",
    ]
    assert (tmp_path / "out.csv.tmp").read_text() == "mine"
