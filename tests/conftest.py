"""Fixtures that many tests share: a tiny real model, and folders of drawn images."""

import hashlib
import os
import random
import re
import resource
import signal
import tempfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from PIL import Image

from index.faiss_library import let_threads_sleep
from index.telemetry import switch_off_telemetry
from tests.leftovers import find_changes, find_living, find_stragglers, take_stock
from tests.milvus_server import milvus_rights, milvus_server
from tests.models import write_tiny_model

__all__ = ["milvus_rights", "milvus_server"]
pytest.register_assert_rewrite("tests.page_browser", "tests.serving_server")

CLASSES = {"blue": (40, 60, 220), "green": (30, 190, 60), "red": (220, 40, 40)}
IMAGES_PER_CLASS = 5
_CACHE = pytest.StashKey["tempfile.TemporaryDirectory[str]"]()
LONGEST = ("test_commands", "test_features_of_exports", "test_log_contract", "test_stage", "test_story")
SLOW_OR_DEEP = re.compile(r"slow|deep|browser|shared_data|hypothesis")
OUTLIVE_MODULES = {"milvus_server", "page_server"}  # fixtures of a package that start processes


def tries(quick: int, *, deep: int) -> int:
    """How often a test tries anew: some times in `make test`, many in `make test-all`, where it is marked `deep`."""
    return deep if "DEEP" in os.environ else quick


def mostly_slow(values: Iterable[str], *, fast: Collection[str]) -> list[object]:
    """Parameters of a test, of which `make test` takes the fast ones."""
    return [value if value in fast else pytest.param(value, marks=pytest.mark.slow) for value in values]


# A machine that does other things, too, is no error.
settings.register_profile(
    "untimed", settings(), deadline=None, max_examples=tries(30, deep=100), suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run modules, and the tests of each, in another order")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where only slow and deep tests are run, leave out modules without any, which each worker would import."""
    if not config.option.markexpr.startswith("(slow or deep)") or "e2e" in collection_path.parts:
        return None
    is_module = collection_path.match("test_*.py")
    return True if is_module and not SLOW_OR_DEEP.search(collection_path.read_text(encoding="utf-8")) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Browsers and real photos are slow, drawn examples deep; another order of modules, and in them, by the seed."""
    for item in items:
        if item.get_closest_marker("browser") or item.get_closest_marker("shared_data"):
            item.add_marker(pytest.mark.slow)
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.deep)
    seed = config.getoption("--shuffle")
    if seed is None:
        return
    chance = random.Random(seed)
    modules: dict[str, list[pytest.Item]] = {}
    for item in items:
        modules.setdefault(item.nodeid.partition("::")[0], []).append(item)
    names = sorted(modules)
    chance.shuffle(names)
    for name in names:
        chance.shuffle(modules[name])
    # Modules of one folder share a server, and for a long one that comes last the other workers would wait.
    names.sort(key=lambda name: ("/e2e/" not in name, Path(name).stem not in LONGEST))
    items[:] = [item for name in names for item in modules[name]]


def pytest_configure(config: pytest.Config) -> None:
    """Report to nobody; let Pillow warn of damaged files, as the commands do; every other warning stays an error."""
    # In the background of a shell SIGINT is ignored, which all that tests start would inherit.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # The power stays on meanwhile: only commands in processes of their own wait for disks.
    os.fsync = lambda descriptor: None
    config.stash[_CACHE] = tempfile.TemporaryDirectory(prefix="retrieval-tests-")
    os.environ["XDG_CACHE_HOME"] = config.stash[_CACHE].name
    switch_off_telemetry()
    let_threads_sleep()  # as the commands do, of which some run in this process
    for module in ("Image", "ImageFile", "GifImagePlugin", "JpegImagePlugin", "PngImagePlugin", "TiffImagePlugin"):
        config.addinivalue_line("filterwarnings", f"ignore:::PIL.{module}")


def pytest_unconfigure(config: pytest.Config) -> None:
    if _CACHE in config.stash:
        config.stash[_CACHE].cleanup()


@pytest.fixture(autouse=True)
def leaves_no_trace(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that changes anything which others of its process share, and does not put it back."""
    before = take_stock()
    yield
    report_leftovers(request.node.nodeid, find_changes(before))


@pytest.fixture(autouse=True)
def cache_of_its_own(leaves_no_trace: None, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test keeps in the user's cache folder, no other finds; nor does the user."""
    root = Path(os.environ["XDG_CACHE_HOME"])
    name = hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:16]
    monkeypatch.setenv("XDG_CACHE_HOME", str(root / name))


@pytest.fixture(scope="module", autouse=True)
def module_leaves_no_trace(request: pytest.FixtureRequest) -> Iterator[None]:
    """The same of a module's fixtures, whose threads and processes have to end with them."""
    items = [item for item in request.session.items if item.path == request.path]
    asked = {name for item in items for name in item.fixturenames}
    # Some of the index's ask for it by name.
    if "index" in request.path.parts and any(item.get_closest_marker("cluster") for item in items):
        asked.add("milvus_server")
    # Or the test that asks for them first would seem to leave them behind.
    for name in sorted(asked & OUTLIVE_MODULES):
        with suppress(pytest.skip.Exception):
            request.getfixturevalue(name)
    before, living = take_stock(), find_living()
    yield
    report_leftovers(f"a fixture or test of {request.node.nodeid}", [*find_changes(before), *find_stragglers(living)])


def report_leftovers(who: str, left: list[str]) -> None:
    if left:
        pytest.fail(f"{who} leaves behind\n  " + "\n  ".join(left), pytrace=False)


@contextmanager
def room_for(file_bytes: int) -> Iterator[None]:
    """No file of this process grows beyond so many bytes: as on a full disk, it cannot be written."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def draw_image(colour: tuple[int, int, int], *, seed: int, size: tuple[int, int] = (64, 48)) -> Image.Image:
    """A colour with soft noise and a bright bar whose place depends on the seed."""
    random = np.random.default_rng(seed)
    pixels = random.normal(loc=colour, scale=12, size=(size[1], size[0], 3))
    start = int(random.integers(0, size[0] // 2))
    pixels[:, start : start + size[0] // 8] += 60
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def draw_folder(folder: Path, *, per_class: int = IMAGES_PER_CLASS) -> Path:
    """Three classes of drawn images, in PNG and JPEG, one folder for each."""
    for number, (name, colour) in enumerate(CLASSES.items()):
        (folder / name).mkdir(parents=True)
        for i in range(per_class):
            image = draw_image(colour, seed=100 * number + i)
            image.save(folder / name / (f"{i}.png" if i % 2 else f"{i}.jpg"))
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model file: 32 x 32 pixels in, 16 numbers out."""
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.onnx")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder that RETRIEVAL_SHARED names (default `../shared`); tests skip without it, unless it was named."""
    named = os.environ.get("RETRIEVAL_SHARED")
    folder = Path(named) if named else Path(__file__).parents[2] / "shared"
    if not (folder / "data").is_dir():
        if named:
            pytest.fail(f"RETRIEVAL_SHARED is {named}, but there is no data folder in it")
        pytest.skip("no photos here; set RETRIEVAL_SHARED to the folder that docs/benchmarks.md describes")
    return folder.resolve()


@pytest.fixture
def image_folder(tmp_path: Path) -> Path:
    """Fifteen drawn images of three classes."""
    return draw_folder(tmp_path / "images")
