"""The files under docs/deploy/: what they start is there, and starts, as far as that goes without a container."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documents import ROOT
from tests.forked import run
from tests.serving_server import serve

DEPLOY = ROOT / "docs" / "deploy"
PORT = "7860"


def _read_steps() -> Iterator[tuple[str, str]]:
    """The instructions of the Containerfile, with their arguments."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Containerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    for line in text.splitlines():
        if line.strip():
            name, _, rest = line.partition(" ")
            yield name, rest.strip()


STEPS = tuple(_read_steps())


def _arguments(name: str) -> list[str]:
    return [rest for step, rest in STEPS if step == name]


def _variables() -> dict[str, str]:
    return dict(os.path.expandvars(word).split("=", 1) for rest in _arguments("ENV") for word in shlex.split(rest))


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean folder with what the Containerfile copies into the image, and nothing else."""
    folder = tmp_path_factory.mktemp("image")
    for rest in _arguments("COPY"):
        *sources, target = rest.split()
        for source in sources:
            if (ROOT / source).is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "node_modules")
                shutil.copytree(ROOT / source, folder / target, ignore=ignored)
            else:
                shutil.copy(ROOT / source, folder / target)
    return folder


def _install(image: Path, *words: str) -> str:
    command = [sys.executable, "-m", "pip", "install", "--no-index", "--no-build-isolation", *words]
    done = subprocess.run(command, cwd=image, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_is_copied_into_the_container_is_enough_to_start_as_its_user_would(image: Path) -> None:
    site = image / "site"
    _install(image, "--no-deps", "--target", str(site), ".")
    assert (site / "bin" / _entry()[0]).is_file()
    code = "from retrieval_app.commands.cli import run; run()"
    composed = (DEPLOY / "compose.yaml").read_text()
    proxied = dict(
        re.findall(r"^ +(RETRIEVAL_SERVE_\w+): (\S+)$", re.sub(r"\$\{SITE.*\}", "photos.example.org", composed), re.M)
    )
    environment = {**os.environ, **_variables(), **proxied, "PYTHONPATH": str(site)}
    words = [*_entry()[1:], *_command(), "--show-config", "--json"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=site, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    settings = json.loads(done.stdout)["settings"]
    assert (settings["host"]["value"], str(settings["port"]["value"])) == ("0.0.0.0", PORT)
    assert _arguments("EXPOSE") == [PORT]
    assert _arguments("USER")[-1] not in ("0", "root")
    volumes = json.loads(_arguments("VOLUME")[0])
    written = [Path(settings[name]["value"]).parent for name in ("token-file",)] + [Path(_command()[1])]
    assert {str(path) for path in written} <= set(volumes)
    assert {name: settings[name]["value"] for name in ("allowed-host", "trusted-proxy")} == {
        "allowed-host": ["photos.example.org"],
        "trusted-proxy": re.findall(r"subnet: ([\d./]+)", composed),
    }
    assert re.findall(r"^ +- .*:(/\w+)(?::ro)?$", composed, re.M) == volumes


def _entry() -> list[str]:
    return list(json.loads(_arguments("ENTRYPOINT")[0]))


def _command() -> list[str]:
    return list(json.loads(_arguments("CMD")[0]))


def test_a_server_with_the_containers_settings_is_found_healthy_by_its_check(gallery: Path, tmp_path: Path) -> None:
    check = json.loads(_arguments("HEALTHCHECK")[0].partition("CMD ")[2])
    assert (check[0], check[1]) == ("python", "-c")
    options = ["--host", "0.0.0.0", "--token-file", str(tmp_path / "token")]
    with serve(gallery, *options, log=tmp_path / "log") as server:
        here = check[2].replace(f":{PORT}/", f":{server.port}/")
        assert subprocess.run([sys.executable, "-c", here]).returncode == 0
    assert subprocess.run([sys.executable, "-c", here], stderr=subprocess.DEVNULL).returncode != 0


def test_the_units_command_and_settings_are_those_of_the_program(tmp_path: Path) -> None:
    text = (DEPLOY / "retrieval.service").read_text()
    started = re.findall(r"^ExecStart=(.+)$", text, re.MULTILINE)
    assert len(started) == 1
    words = shlex.split(started[0])[1:]
    settings = dict(re.findall(r"^Environment=(RETRIEVAL_\w+)=(.+)$", text, re.MULTILINE))
    (tmp_path / "serve.toml").write_text(_uncomment((DEPLOY / "serve.toml").read_text()))
    words[words.index("--config") + 1] = str(tmp_path / "serve.toml")
    done = run([*words, "--show-config", "--json"], env={**os.environ, **settings})
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)["settings"]
    assert str(shown["port"]["value"]) == PORT
    assert f"127.0.0.1:{PORT}/v1/ready" in text
    assert {one["from"] for name, one in shown.items() if one["variable"] in settings} == {
        f"the variable {name}" for name in settings
    }
    given = tomllib.loads((tmp_path / "serve.toml").read_text())
    assert {name: shown[name]["value"] for name in given} == given


def _uncomment(text: str) -> str:
    """The file with the settings in it that it only shows."""
    return re.sub(r"^# (?=[\w-]+ = )", "", text, flags=re.MULTILINE)
