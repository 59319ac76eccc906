"""Paths and names as Windows has them."""

import ntpath

import pytest

from index.paths import below, folders_above, is_name_on_windows, names_no_parent, names_no_root, path_from


def test_a_path_on_windows_is_named_below_its_root_with_slashes() -> None:
    assert below("C:\\photos", "C:\\photos\\cats\\1.jpg", system=ntpath) == "cats/1.jpg"
    assert below("C:\\", "C:\\cats\\1.jpg", system=ntpath) == "cats/1.jpg"
    assert below("C:\\photos", "C:\\photos2\\1.jpg", system=ntpath) == "C:/photos2/1.jpg"


def test_a_path_is_relative_but_for_another_drive_of_windows() -> None:
    assert path_from("C:\\a\\gallery", "C:\\a\\photos", system=ntpath) == "../photos"
    assert path_from("C:\\a\\gallery", "D:\\photos", system=ntpath) == "D:/photos"
    assert path_from("/a/gallery", "/a/photos") == "../photos"


@pytest.mark.parametrize(
    "path", ["..\\1.jpg", "a/..\\..\\1.jpg", "C:\\1.jpg", "C:1.jpg", "\\1.jpg", "/1.jpg", "\\\\host\\share\\1"]
)
def test_a_path_that_leads_out_of_a_folder_on_windows_is_seen(path: str) -> None:
    assert not (names_no_parent(path, system=ntpath) and names_no_root(path, system=ntpath))


def test_a_backslash_and_a_colon_are_letters_elsewhere() -> None:
    assert names_no_parent("..\\1.jpg")
    assert names_no_root("C:\\1.jpg")


def test_the_folders_above_a_path_end_below_the_root() -> None:
    assert list(folders_above("C:\\a\\b", system=ntpath)) == ["C:\\a\\b", "C:\\a"]
    assert list(folders_above("/a/b")) == ["/a/b", "/a"]
    assert list(folders_above("/")) == list(folders_above("C:\\", system=ntpath)) == []


@pytest.mark.parametrize(
    "name", ["con", "AUX.jpg", "Com\u00b9", "nul .txt", "cats.", "cats ", "10:1", "a?", "a\tb", 'a"b', "a/b"]
)
def test_names_that_windows_does_not_keep(name: str) -> None:
    assert not is_name_on_windows(name)


@pytest.mark.parametrize("name", ["cats", "T-shirt (red)", "console", "com", "caf\u00e9 & 1.5", ".hidden"])
def test_names_that_windows_keeps(name: str) -> None:
    assert is_name_on_windows(name)
