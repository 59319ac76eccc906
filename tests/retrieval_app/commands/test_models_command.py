import json

import pytest

from retrieval_app.commands.cli import main


def test_models_are_chosen_by_a_part_of_their_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--json"]) == 0
    every = json.loads(capsys.readouterr().out)["models"]
    assert all(one["licence"] and one["card"] and one["megabytes"] > 1 for one in every)
    assert main(["models", "BUILTIN", "--json"]) == 0
    [builtin] = json.loads(capsys.readouterr().out)["models"]
    assert builtin["name"] == "builtin"
    assert main(["models", "no-such-model"]) == 1
    assert "no name in the list" in capsys.readouterr().err
