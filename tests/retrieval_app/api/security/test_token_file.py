from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from index.durable import is_temporary
from index.errors import InputError
from retrieval_app.api.security import token_entries
from retrieval_app.api.security.rights import ALL, spread_rights
from retrieval_app.api.security.token_book import TokenBook
from retrieval_app.api.security.token_file import add_token, read_token_entries, revoke_token, rotate_token

ADD_ENDLESSLY = """
import sys, itertools
from pathlib import Path
from retrieval_app.api.security.token_file import add_token, revoke_token
file, name = Path(sys.argv[1]), sys.argv[2]
for number in itertools.count():
    add_token(file, f"{name}-{number}", may=["read"])
    print(number, flush=True)
    if number > 20:
        revoke_token(file, f"{name}-{number - 20}")
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "team.tokens"


def test_writing_includes_all_and_metrics_nothing_else() -> None:
    assert spread_rights(["write"]) == ALL
    assert spread_rights(["review"]) == {"read", "review"}
    assert spread_rights(["metrics"]) == {"metrics"}
    assert spread_rights(["all"]) == spread_rights([]) == frozenset()


def test_a_right_of_one_gallery_is_none_elsewhere(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    entry, token = add_token(file, "anna", may=["review:shop", "read", "metrics:shop"])
    assert entry.may == ("read", "review:shop", "metrics:shop")
    assert entry.rights_in(()) == entry.rights_in(["fashion"]) == {"read"}
    assert entry.rights_in(["shop"]) == {"read", "review", "metrics"}
    book = TokenBook(file)
    assert book.find(token) == entry
    book.warn_of_others(["shop"])
    assert not caplog.records
    book.warn_of_others(["shoes"])
    assert [record.args for record in caplog.records] == [("shop",)]


def test_a_file_never_becomes_larger_than_what_is_read(file: Path) -> None:
    rights = [f"read:gallery-{number:04d}-{'x' * 40}" for number in range(2000)]

    def fill() -> None:
        for number in range(1000):
            add_token(file, f"guest-{number}", may=rights)

    with pytest.raises(InputError, match="revoke tokens that nobody"):
        fill()
    assert len(read_token_entries(file).entries) > 5


@pytest.mark.parametrize(
    "right", ["review:", "review:a b", "review:../x", ":shop", "all:shop", "read:shop:more", ""]
)
def test_what_is_no_right_of_a_gallery_is_refused(file: Path, right: str) -> None:
    with pytest.raises(InputError, match=r"rights are some of|is no name of a gallery"):
        add_token(file, "anna", may=[right])
    assert not file.exists()


def test_a_token_opens_by_itself_and_the_file_does_not_hold_it(file: Path) -> None:
    entry, token = add_token(file, "anna", may=["review"])
    assert TokenBook(file).find(token) == entry
    assert token not in file.read_text()
    assert token.removeprefix("retrieval_") not in file.read_text()
    assert len(token) > 40


def test_only_its_owner_may_read_the_file_whatever_the_umask(file: Path) -> None:
    before = os.umask(0)
    try:
        add_token(file, "anna", may=["read"])
        rotate_token(file, "anna")
    finally:
        os.umask(before)
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_file_that_others_may_write_opens_nothing(file: Path) -> None:
    add_token(file, "anna", may=["read"])
    file.chmod(0o622)
    with pytest.raises(InputError, match="chmod 600"):
        TokenBook(file)


def test_a_name_is_taken_once_and_has_to_be_there_to_be_revoked(file: Path) -> None:
    add_token(file, "anna", may=["read"])
    with pytest.raises(InputError, match=r"team\.tokens: there is a token of the name anna already"):
        add_token(file, "anna", may=["write"])
    with pytest.raises(InputError, match="no token of the name 'ben'; those there are: anna"):
        revoke_token(file, "ben")


@pytest.mark.parametrize("name", ["", "a b", "-a", "ä", "a\n", "a" * 65, "the token "])
def test_a_name_that_would_mislead_in_a_log_is_refused(file: Path, name: str) -> None:
    with pytest.raises(InputError, match="no name of a token"):
        add_token(file, name, may=["read"])
    assert not file.exists()


@pytest.mark.parametrize("may", [[], ["all"], ["read", "root"]])
def test_rights_that_are_not_known_are_refused(file: Path, may: list[str]) -> None:
    with pytest.raises(InputError, match="rights are some of read, review, write, metrics"):
        add_token(file, "anna", may=may)


def test_a_token_ends_after_its_days_and_a_rotated_one_begins_anew(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, token = add_token(file, "anna", may=["read"], days=90)
    book = TokenBook(file)
    now = datetime.now(UTC)

    class Later(datetime):
        days = 89

        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            del tz
            return now + timedelta(days=cls.days)

    monkeypatch.setattr(token_entries, "datetime", Later)
    found = book.find(token)
    assert found is not None
    Later.days = 91
    assert book.find(token) is None
    assert book.find_again(found.sha256) is None
    monkeypatch.undo()
    renewed, _ = rotate_token(file, "anna")
    assert renewed.days == 90


def test_a_rotated_token_keeps_its_rights_and_the_one_before_opens_nothing(file: Path) -> None:
    _, before = add_token(file, "anna", may=["review", "metrics"])
    entry, after = rotate_token(file, "anna", days=7)
    book = TokenBook(file)
    assert book.find(before) is None
    assert book.find(after) == entry
    assert (entry.may, entry.days) == (("review", "metrics"), 7)


@pytest.mark.parametrize(
    "change",
    [
        lambda values: values.update(format="other"),
        lambda values: values.update(format_version=2),
        lambda values: values.update(salt=""),
        lambda values: values["tokens"][0].update(may=["read", "root"]),
        lambda values: values["tokens"][0].update(may=["read", 1]),
        lambda values: values["tokens"][0].update(may=["review:/etc"]),
        lambda values: values["tokens"][0].update(may="read"),
        lambda values: values["tokens"][0].update(sha256=None),
        lambda values: values["tokens"][0].update(days=0),
        lambda values: values["tokens"][0].update(days="never"),
        lambda values: values["tokens"][0].update(made_at="2026-01-01"),
        lambda values: values["tokens"].append(values["tokens"][0]),
        lambda values: values["tokens"][0].pop("days"),
    ],
)
def test_of_a_file_that_is_not_all_sound_nothing_holds(file: Path, change: object) -> None:
    _, token = add_token(file, "anna", may=["read"])
    values = json.loads(file.read_text())
    change(values)  # type: ignore[operator]
    file.write_text(json.dumps(values))
    for read in (read_token_entries, TokenBook):
        with pytest.raises(InputError, match=r"team\.tokens: .*damaged"):
            read(file)
    with pytest.raises(InputError, match="damaged"):
        add_token(file, "ben", may=["read"])
    assert json.loads(file.read_text()) == values
    assert token not in file.read_text()


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"[" * 100_000, b"\xff", b"null", b'{"format": "retrieval-tokens"}']
)
def test_what_is_no_file_of_tokens_is_named(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"team\.tokens: no file of tokens, or a damaged one"):
        read_token_entries(file)


def test_a_missing_file_and_a_missing_folder_are_told_apart(file: Path) -> None:
    with pytest.raises(InputError, match="there is no such file; `retrieval tokens add` makes one"):
        TokenBook(file)
    with pytest.raises(InputError, match="its folder does not exist"):
        add_token(file / "deeper", "anna", may=["read"])


def test_writers_at_the_same_time_lose_nothing(file: Path) -> None:
    names = [f"guest-{number}" for number in range(24)]
    with ThreadPoolExecutor(8) as pool:
        tokens = list(pool.map(lambda name: add_token(file, name, may=["read"])[1], names))
    book = TokenBook(file)
    assert [found.name for token in tokens if (found := book.find(token))] == names


@pytest.mark.slow
def test_two_writers_that_are_killed_leave_a_sound_file_with_all_that_they_told(file: Path) -> None:
    add_token(file, "anna", may=["write"])
    writers = [
        subprocess.Popen([sys.executable, "-c", ADD_ENDLESSLY, str(file), name], stdout=subprocess.PIPE, text=True)
        for name in ("one", "two")
    ]
    for writer in writers:
        assert writer.stdout is not None
        for _ in range(8):
            writer.stdout.readline()
    for writer in writers:
        writer.kill()
    told = [len(writer.communicate()[0].split()) + 8 for writer in writers]
    names = {entry.name for entry in read_token_entries(file).entries}
    for name, count in zip(("one", "two"), told, strict=True):
        kept = {f"{name}-{number}" for number in range(max(1, count - 18), count)}
        assert kept <= names
    assert "anna" in names
    for left in file.parent.iterdir():
        assert left == file or is_temporary(left.name)
        assert left.stat().st_mode & 0o777 == 0o600
    add_token(file, "ben", may=["read"])  # nobody holds the lock any more


@given(st.data())
def test_no_other_text_opens_anything(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    file = tmp_path_factory.mktemp("tokens") / "team.tokens"
    entry, token = add_token(file, "anna", may=["read"])
    changed = st.builds(
        lambda at, to: token[:at] + to + token[at + 1 :], st.integers(0, len(token)), st.text(max_size=2)
    )
    kept = st.sampled_from([entry.sha256, entry.name, "", token.upper(), token + "\0", f" {token}"])
    text = data.draw(st.text() | changed | kept)
    assert TokenBook(file).find(text) is None or text == token
