from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from index.errors import InputError
from retrieval_app.api.security.tokens import check_token, is_open_to_others, make_token, read_token_file


@pytest.mark.parametrize(
    "token",
    ["", "short", "fifteen-letters", "with a space in the middle", "mit-ümlaut-und-noch-mehr", "x" * 513,
     "with-a-line\nbreak-in-it", "with-a-nul\0-in-the-middle"],
)  # fmt: skip
def test_a_token_that_is_guessed_or_that_no_header_can_carry_is_refused(token: str) -> None:
    with pytest.raises(InputError, match="a token has 16 to 512 characters") as refused:
        check_token(token)
    assert "openssl rand -hex 16" in str(refused.value)
    assert not token or token not in str(refused.value)


def test_a_new_token_has_128_bits_and_is_another_each_time() -> None:
    tokens = {make_token() for _ in range(100)}
    assert len(tokens) == 100
    for token in tokens:
        check_token(token)
        assert len(bytes.fromhex(token)) == 16


def test_a_file_that_is_not_there_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "token"
    before = os.umask(0)
    try:
        token = read_token_file(file)
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not is_open_to_others(file)
    assert read_token_file(file) == token  # and is the same from then on


def test_a_file_may_have_white_space_around_the_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("  please-choose-your-own\r\n\n")
    assert read_token_file(tmp_path / "token") == "please-choose-your-own"


@pytest.mark.parametrize("content", [b"", b"short\n", b"\xff" * 40, b"two tokens-in-one-file", b"x" * 100_000])
def test_a_file_without_a_token_is_named_and_not_told(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"--token-file .*/token: a token has") as refused:
        read_token_file(file)
    assert "two tokens" not in str(refused.value)
    assert file.read_bytes() == content


def test_a_file_that_cannot_be_made_or_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be made: No such file"):
        read_token_file(tmp_path / "none" / "token")
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        read_token_file(tmp_path)


def test_others_are_seen_who_may_read_the_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("please-choose-your-own")
    file.chmod(0o600)
    assert not is_open_to_others(file)
    for mode in (0o640, 0o604, 0o644, 0o620):
        file.chmod(mode)
        assert is_open_to_others(file)
