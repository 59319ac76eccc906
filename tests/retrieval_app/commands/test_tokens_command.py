import json
from pathlib import Path

import pytest

from retrieval_app.api.security.tokens import TokenBook
from retrieval_app.commands.cli import main


def test_a_token_is_added_listed_rotated_and_revoked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "team.tokens"
    assert main(["tokens", "add", str(file), "anna", "--may", "review", "--days", "90"]) == 0
    told = capsys.readouterr()
    token = told.out.strip()
    assert "The token of anna (may: review), until 20" in told.err
    assert token not in told.err
    found = TokenBook(file).find(token)
    assert found is not None
    assert main(["tokens", "list", str(file)]) == 0
    listed = capsys.readouterr().out
    assert [line.split()[:2] for line in listed.splitlines()] == [["name", "may"], ["anna", "review"]]
    assert token not in listed
    assert found.sha256 not in listed
    assert main(["tokens", "rotate", str(file), "anna", "--json"]) == 0
    rotated = json.loads(capsys.readouterr().out)
    assert set(rotated) == {"name", "may", "made_at", "expires_at", "over", "token"}
    assert TokenBook(file).find(token) is None
    assert main(["tokens", "revoke", str(file), "anna"]) == 0
    assert TokenBook(file).find(rotated["token"]) is None
    assert main(["tokens", "list", str(file)]) == 0
    assert "holds no token" in capsys.readouterr().out
