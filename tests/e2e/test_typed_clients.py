"""Clients that are generated of the API's OpenAPI document, as docs/api.md says, and asked of a real server."""

import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retrieval_app.commands.cli import main
from tests.documents import ROOT, commands_in
from tests.page_scripts import PAGE, Node, find_node, install_tools
from tests.retrieval_app.conftest import build_small_gallery
from tests.serving_server import TOKEN, Server, serve

PAGE_OF_API = ROOT / "docs" / "api.md"
PACKAGE = "image_retrieval_client"
WRONG_USES = """
import createClient from 'openapi-fetch';
import type {paths} from './openapi.d.ts';

const client = createClient<paths>({baseUrl: 'http://localhost:7860'});
// @ts-expect-error: there is no such route
await client.GET('/v1/nothing');
// @ts-expect-error: nothing is searched for
await client.POST('/v1/search', {body: {k: 3}});
// @ts-expect-error: that cannot be told
await client.POST('/v1/search', {body: {queries: [{image_id: 1}], include: ['colour']}});
const {data, error} = await client.GET('/v1/images/{image_id}', {params: {path: {image_id: 1}}});
// @ts-expect-error: it may have failed
data.sha256;
// @ts-expect-error: a message of errors is a text
const status: number | undefined = error?.error.message;
"""


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Server]:
    """A server with a token, over photos of three colours."""
    folder = tmp_path_factory.mktemp("clients")
    with serve(build_small_gallery(folder, model=tiny_model), log=folder / "log", token=TOKEN) as server:
        yield server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, asked: Server) -> Path:
    """What one who reads the page has: its files, which ask the server, a photo, and the server's document."""
    folder = tmp_path_factory.mktemp("reader")
    for file in (ROOT / "docs/clients").iterdir():
        text = file.read_text(encoding="utf-8").replace("http://localhost:7860", asked.url)
        (folder / file.name).write_text(text.replace("please-choose-your-own", TOKEN))
    (folder / "query.jpg").write_bytes((asked.log.parent / "images" / "red" / "0.jpg").read_bytes())
    (folder / "openapi.json").write_bytes(asked.get("/v1/openapi.json").body)
    return folder


def find_command(start: str) -> list[str]:
    """The words of the page's command that starts so, after that."""
    [line] = [line for line in commands_in(PAGE_OF_API.read_text(encoding="utf-8")) if line.startswith(f"{start} ")]
    return shlex.split(line.removeprefix(start))


def run(*command: str, cwd: Path, search_in: Path = ROOT) -> str:
    """What Python prints, which must succeed and warn of nothing; it finds packages in one more folder."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # of ruff, which formats what is generated
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(search_in), "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not re.search("warn|skip|omit", done.stdout + done.stderr, re.IGNORECASE), done.stdout + done.stderr
    return done.stdout


def test_the_document_is_that_of_a_server_with_a_token(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["openapi"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((folder / "openapi.json").read_text())


@pytest.fixture(scope="module")
def package(folder: Path) -> Iterator[Path]:
    """The folder of the Python client, which is generated without a warning and can be imported."""
    run("-m", "openapi_python_client", *find_command("openapi-python-client"), cwd=folder)
    package = folder / PACKAGE.replace("_", "-")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(package)
        yield package
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


@pytest.fixture
def client(package: Path, asked: Server) -> Iterator[Any]:
    """A Python client that has the token."""
    from image_retrieval_client import AuthenticatedClient

    with AuthenticatedClient(asked.url, token=TOKEN, raise_on_unexpected_status=True) as client:
        yield client


def test_the_pages_python_program_searches_by_id_and_by_a_photo(package: Path, folder: Path) -> None:
    printed = run("client.py", cwd=folder, search_in=package)
    assert len(printed.splitlines()) == 6
    assert printed.splitlines()[3].endswith(" red red/0.jpg")


def test_errors_are_of_one_type_whatever_is_wrong(client: Any, asked: Server) -> None:
    from image_retrieval_client import AuthenticatedClient
    from image_retrieval_client.api.health import get_health
    from image_retrieval_client.api.images import get_image
    from image_retrieval_client.api.search import search_by_image
    from image_retrieval_client.models import ErrorAnswer
    from image_retrieval_client.types import File

    unknown = get_image.sync_detailed(999, client=client)
    assert (unknown.status_code, type(unknown.parsed)) == (404, ErrorAnswer)
    assert unknown.parsed.error.field == "image_id"
    broken = search_by_image.sync(client=client, body=File(io.BytesIO(b"no photo")))
    assert (type(broken), broken.error.code) == (ErrorAnswer, "bad_image")
    with AuthenticatedClient(asked.url, token=TOKEN[::-1]) as guesses:
        refused = get_image.sync_detailed(1, client=guesses)
        assert (refused.status_code, refused.parsed.error.code) == (401, "unauthorized")
    assert get_health.sync(client=client).status == "alive"


@pytest.fixture(scope="module")
def node() -> Node:
    """Node, with the tools of the page's scripts, among which are those that generate clients."""
    node = find_node()
    if node is None or not install_tools(node):
        assert "CI" not in os.environ, "Node and its packages are needed"
        pytest.skip("there is no Node, or its packages could not be fetched")
    return node


def test_the_pages_typescript_program_has_types_and_searches(folder: Path, node: Node, asked: Server) -> None:
    def run_script(*words: str | Path) -> str:
        done = node.run(*words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert done.returncode == 0, done.stdout
        assert "warn" not in done.stdout.lower()
        return done.stdout

    tools = PAGE / "node_modules"
    (folder / "node_modules").symlink_to(tools)
    (folder / "wrong.mts").write_text(WRONG_USES)
    run_script(tools / "openapi-typescript" / "bin" / "cli.js", *find_command("npx openapi-typescript"))
    run_script(tools / "typescript" / "bin" / "tsc", *find_command("npx tsc"), "wrong.mts")
    printed = run_script("client.mjs").splitlines()
    assert len(printed) == 6
    assert printed[3].endswith(f" {asked.get('/v1/images/1').json()['path']}")
