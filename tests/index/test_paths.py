from index.paths import below, folders_above, names_no_parent


def test_a_path_is_named_below_its_root() -> None:
    assert below("/photos", "/photos/cats/1.jpg") == below("/", "/cats/1.jpg") == "cats/1.jpg"
    assert below("/photos", "/photos2/1.jpg") == "/photos2/1.jpg"


def test_a_path_that_leads_out_of_a_folder_is_seen() -> None:
    assert not any(map(names_no_parent, ("../1.jpg", "a/../../1.jpg", "..")))
    assert all(map(names_no_parent, ("a/..b/1.jpg", "..\\1.jpg")))


def test_the_folders_above_a_path_end_below_the_root() -> None:
    assert list(folders_above("/a/b")) == ["/a/b", "/a"]
    assert list(folders_above("/")) == []
