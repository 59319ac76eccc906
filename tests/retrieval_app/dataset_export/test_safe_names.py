"""Names of folders and files for labels of any text."""

import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval_app.dataset_export.safe_names import SafeNames

TEXTS = st.one_of(
    st.text(max_size=300),
    st.sampled_from(
        ["Cat", "cat", "CAT ", "a/b", "a\\b", "..", ".", "", "con", "NUL.txt", "x" * 300, "caf\u00e9", "cafe\u0301"]
    ),
    st.text("aA._/ -", max_size=4),
)


@given(st.lists(TEXTS, unique=True, max_size=30), st.booleans())
def test_every_text_has_a_name_of_its_own_that_all_file_systems_take(texts: list[str], splits: bool) -> None:
    names = SafeNames("metadata.parquet", splits=splits)
    given_names = [names.take(text) for text in texts]
    assert (
        len({unicodedata.normalize("NFKC", name).casefold() for name in [*given_names, "metadata.parquet"]})
        == len(texts) + 1
    )
    for name in given_names:
        assert 0 < len(name.encode()) <= 100
        assert Path(name).name == name
        assert name.isprintable()
        assert not set('<>:"/\\|?*') & set(name)
        assert name[0] not in "._ "
        assert name[-1] not in ". "
        assert not splits or name.replace("_", "a").isalnum()


@pytest.mark.parametrize("label", ["cats", "T-shirt (red)", "Crème brûlée", "10 %".replace(" %", ""), "naïve, old"])
def test_a_usual_label_is_its_own_name(label: str) -> None:
    assert SafeNames().take(label) == label


def test_files_of_one_name_are_told_apart() -> None:
    names = SafeNames()
    found = [names.take("1", suffix=".jpg", key=str(number)) for number in range(3)]
    assert found[0] == "1.jpg"
    assert len(set(found)) == 3


@pytest.mark.parametrize("device", ["CON", "nul.txt", "COM1", "LPT\u00b2", "com\u00b9.png"])
def test_names_of_windows_devices_are_not_given(device: str) -> None:
    assert SafeNames().take(device).partition(".")[0].casefold() != device.partition(".")[0].casefold()
