"""What a test may leave behind in its process: a look at the state that all tests of it share, before and after.

A look takes some 100 microseconds and loads nothing: state of a library that is not loaded is none. Not looked at:
warnings' filters, which pytest puts back itself, and modules' attributes, which is what `monkeypatch` is for.
"""

import gc
import logging
import multiprocessing
import os
import random
import re
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[1]
# SIGALRM is left out: it is pytest-timeout's, of each test another.
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD, signal.SIGUSR1)
_LIMITS = ("RLIMIT_AS", "RLIMIT_CPU", "RLIMIT_CORE", "RLIMIT_FSIZE", "RLIMIT_NOFILE", "RLIMIT_STACK")
_SET_BY_IMPORTS = {
    "PYTEST_CURRENT_TEST": "pytest",
    "KMP_INIT_AT_FORK": "scikit-learn, when it is imported",
    "KMP_DUPLICATE_LIB_OK": "scikit-learn, when it is imported",
    "TORCHINDUCTOR_CACHE_DIR": "torch, when its compiler is imported",
    "TOKENIZERS_PARALLELISM": "open_clip, when it is imported",
    "HF_HUB_DISABLE_TELEMETRY": "Gradio, when it makes a page without analytics",
}
"""Variables of the environment that others than tests set, and who."""

_OF_TOOLS = (".hypothesis", ".pytest_cache", "__pycache__", ".mypy_cache", ".ruff_cache", ".import_linter_cache")
_GRACE_S = 5.0  # for threads and processes that are on their way out
_MODULES = "modules"
State = dict[str, Any]


def take_stock() -> State:
    """The state that is shared, by name; values can be compared."""
    return {
        "environment": {name: value for name, value in os.environ.items() if name not in _SET_BY_IMPORTS},
        "working folder": os.getcwd(),
        "umask": _read_status("Umask"),
        "signal handlers": [signal.getsignal(number) for number in _SIGNALS],
        "resource limits": {name: resource.getrlimit(getattr(resource, name)) for name in _LIMITS},
        "sys.path": list(sys.path),
        "garbage collector": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()),
        "names in the checkout": set(os.listdir(ROOT)) - set(_OF_TOOLS),
        _MODULES: len(sys.modules),
        **_stock_of_logging(),
        **_stock_of_chance(),
        **{
            name: look(sys.modules[module])
            for name, (module, look) in _LIBRARIES.items()
            if module in sys.modules and not getattr(sys.modules[module].__spec__, "_initializing", False)
        },
    }


def find_changes(before: State) -> list[str]:
    """What is not as it was; libraries and loggers that came in between are as they like."""
    after = take_stock()
    if before[_MODULES] != after[_MODULES]:  # some draw a random number when they are imported
        after["random"] = before.get("random")
    after[_MODULES] = before[_MODULES]
    return [f"{name}: {_show(before[name], after[name])}" for name in before if before[name] != after.get(name)]


def find_living() -> tuple[set[threading.Thread], set[psutil.Process]]:
    """The threads of this process, and its children with those that `tests.forked` forks for it."""
    children = set(psutil.Process().children())
    for child in list(children):
        if _FORKS in _read_command(child):
            children.update(child.children())
    return set(threading.enumerate()), children


def _read_command(process: psutil.Process) -> str:
    """Its command; nothing where it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def find_stragglers(before: tuple[set[threading.Thread], set[psutil.Process]]) -> list[str]:
    """The threads and child processes that were not there before, and do not end by themselves soon."""
    deadline = time.monotonic() + _GRACE_S
    while True:
        threads, children = find_living()
        new = [f"thread {each.name}" for each in threads - before[0] if not _IS_SHARED.match(each.name)]
        new += [f"process {shown}" for each in children - before[1] if (shown := _describe_process(each))]
        if not new or time.monotonic() > deadline:
            return new
        time.sleep(0.02)


def _stock_of_logging() -> State:
    root = logging.root
    state: State = {"logging": (root.manager.disable, _own_handlers(root), root.level)}
    for name, logger in list(root.manager.loggerDict.items()):
        # torch and the Hub set their own when they like
        if isinstance(logger, logging.Logger) and not name.startswith(("torch.", "huggingface_hub")):
            state[f"logger {name}"] = (logger.level, logger.disabled, logger.propagate, _own_handlers(logger))
    return state


def _own_handlers(logger: logging.Logger) -> list[logging.Handler]:
    """Without those that pytest puts on every logger for each phase of a test, or a library in its import."""
    return [
        each
        for each in logger.handlers
        if not type(each).__module__.startswith("_pytest.") and not isinstance(each, logging.NullHandler)
    ]


def _stock_of_chance() -> State:
    state: State = {}
    if "playwright" not in sys.modules:  # which names its messages by the one generator of the process
        state["random"] = hash(random.getstate())
    start = multiprocessing.get_start_method(allow_none=True)
    return state if start is None else {**state, "start of processes": start}  # chosen by whoever starts one first


def _look_at_torch(torch: Any) -> State:
    return {
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "default type": torch.get_default_dtype(),
        "gradients": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cudnn": (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic),
        "products": torch.get_float32_matmul_precision(),
        "seed": torch.initial_seed(),  # what only draws, as every layer that is made does, leaves it alone
    }


_LIBRARIES: dict[str, tuple[str, Callable[[Any], object]]] = {
    "faiss": (
        "faiss",
        lambda faiss: (
            faiss.get_deserialization_vector_byte_limit(),
            faiss.get_deserialization_loop_limit(),
            faiss.omp_get_max_threads(),
        ),
    ),
    "numpy": ("numpy", lambda numpy: (str(numpy.get_printoptions()), sorted(numpy.geterr().items()))),
    "numpy.random": ("numpy.random", lambda drawn: hash(drawn.get_state(legacy=True)[1].tobytes())),
    "torch": ("torch", _look_at_torch),
    "PIL.Image": ("PIL.Image", lambda module: module.MAX_IMAGE_PIXELS),
    "PIL.ImageFile": ("PIL.ImageFile", lambda module: (module.LOAD_TRUNCATED_IMAGES, module.MAXBLOCK)),
    "PIL.PngImagePlugin": ("PIL.PngImagePlugin", lambda module: (module.MAX_TEXT_CHUNK, module.MAX_TEXT_MEMORY)),
}
"""What is shown of it, the module, which is never loaded for this, and what of it is compared."""

_LIVE_AS_LONG = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "index.images.decoding_worker")
_FORKS = "tests.forked"  # lives as long, too; what it forks has to end
_IS_SHARED = re.compile(
    r"(tqdm_monitor|pytest_timeout|execnet|AnyIO worker thread"
    r"|asyncio_\d+"  # of a loop's own pool, which end with the loop's last reference
    r"|QueueFeederThread)"
)


def _describe_process(process: psutil.Process) -> str:
    """Its command; nothing where it has ended, or is one that lives as long as this process, whoever needs it first."""
    words = _read_command(process)
    with suppress(psutil.Error):
        if not any(name in words for name in _LIVE_AS_LONG) and (_FORKS not in words or process.ppid() != os.getpid()):
            return words
    return ""


def _read_status(name: str) -> str:
    status = Path("/proc/self/status").read_text()
    found = re.search(rf"^{name}:\s*(.*)$", status, re.MULTILINE)
    return found[1] if found else ""


def _show(before: object, after: object) -> str:
    if isinstance(before, dict) and isinstance(after, dict):
        names = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
        return ", ".join(f"{name} {before.get(name)!r} → {after.get(name)!r}" for name in names)
    if isinstance(before, set) and isinstance(after, set):
        return f"new {sorted(after - before)}, gone {sorted(before - after)}"
    shown = f"{before!r} → {after!r}"
    return shown if len(shown) < 600 else "not as it was"
