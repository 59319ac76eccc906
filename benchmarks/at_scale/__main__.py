"""Every command, and every view of the page, on some 225,000 photos in 2,385 labels: seconds and memory.

    python -m benchmarks.at_scale --out bench/scale
    python -m benchmarks.at_scale --out bench/scale --images 25000 75000 225000 --only index search evaluate labels
    python -m benchmarks.at_scale --out bench/scale-builtin --images 20000 --model retrieval_app/builtin.onnx

Each command runs in a process of its own. What was measured is kept, and the same command goes on. Of several
numbers of images it prints how the processor time of each command grows.
"""

import argparse
import json
import math
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
from PIL import Image, ImageOps

from benchmarks.at_scale.models import write_thumbnail_model
from benchmarks.at_scale.photos import make_photos
from benchmarks.common.record import ending_in_words, keep, print_machine, run_retrieval, write_record
from benchmarks.common.tables import format_table
from benchmarks.indexing.images import list_images, take_evenly
from benchmarks.serving.servers import run_ours

NEW_SHARE = 0.01  # of the images, added before `index update`
SET_WHERE = "path LIKE 'n01%' OR path LIKE 'n020%' OR path LIKE 'n021%'"  # some 50,000
VIEWS = ("problems", "words", "labels/issues?limit=60", "quality", "map", "duplicates", "labels/classes")
_POLL_S, _WAIT_S = 0.25, 3600

Step = Callable[[], dict[str, Any]]


def main(arguments: list[str] | None = None) -> None:
    options = _parse(arguments)
    print_machine([options.seed])
    model = options.model or write_thumbnail_model(options.out / "thumbnail.onnx")
    sizes: dict[int, dict[str, dict[str, Any]]] = {}
    for images in options.images:
        out = options.out / str(images)
        photos = make_photos(out / "made", images=images, sources=options.out / "sources", seed=options.seed)
        found = sizes[images] = {}
        for name, step in _list_steps(out, photos, model):
            if any(only in name for only in options.only):
                found[name] = keep(out / "steps" / f"{name}.json", step)
                print(f"{name}: {json.dumps(found[name])[:200]}", flush=True)
    text = "\n\n".join(
        [*(f"{images} images\n\n{format_tables(found)}" for images, found in sizes.items()), format_growth(sizes)]
    )
    print(text)
    results = {str(images): found for images, found in sizes.items()}
    write_record(options.out / "record.json", settings=vars(options), results=results, text=text)


def format_tables(found: dict[str, dict[str, Any]]) -> str:
    """The table of commands, and that of views."""
    commands = [
        (f"`{name}`", f"{one['seconds']:.1f}", f"{one['processor_s']:.1f}", f"{one['peak_mib']:.0f}")
        for name, one in found.items()
        if "peak_mib" in one
    ]
    views = [(name, f"{value:.2f}") for name, value in found.get("views", {}).items()]
    table = format_table(("command", "seconds", "of all cores", "peak MiB"), commands)
    return f"{table}\n\n{format_table(('request of a server', 'seconds, or MiB'), views)}"


def format_growth(sizes: dict[int, dict[str, dict[str, Any]]]) -> str:
    """Processor seconds of each command by the number of images, and the exponent of their growth."""
    least, most = min(sizes), max(sizes)
    rows = []
    for name in sizes[most] if least < most else ():
        seconds = [found.get(name, {}).get("processor_s") for found in sizes.values()]
        if None not in seconds:
            power = math.log(seconds[-1] / seconds[0]) / math.log(most / least)
            rows.append([f"`{name}`", *(f"{second:.1f}" for second in seconds), f"{power:.2f}"])
    return format_table(["seconds of all cores", *map(str, sizes), "grows with the power"], rows) if rows else ""


def _list_steps(out: Path, photos: Path, model: Path) -> list[tuple[str, Step]]:
    gallery, run = out / "gallery", out / "run"
    update = ("index", "update", gallery)
    commands: list[tuple[str, tuple[str | Path, ...]]] = [
        ("index build", ("index", "build", model, photos, "--out", gallery, "--no-cache")),
        ("index update, nothing changed", update),
        ("index update, 1 % new", update),
        ("index verify", ("index", "verify", gallery)),
        ("search --id", ("search", gallery, "--id", "1")),
        ("search, a photo", ("search", gallery, next(photos.rglob("*.jpg")))),
        ("search, words", ("search", gallery, "bmw")),
        ("evaluate", ("evaluate", gallery)),
        ("labels issues", ("labels", "issues", gallery)),
        ("labels accept", ("labels", "accept", gallery, "--at-least-right", "95%")),
        ("labels certify", ("labels", "certify", gallery, "--at-most", "20%")),
        ("duplicates", ("duplicates", gallery, "--out", out / "duplicates")),
        ("index leaks", ("index", "leaks", gallery)),
        ("index problems", ("index", "problems", gallery)),
        ("index cluster", ("index", "cluster", gallery)),
        ("labels set", ("labels", "set", gallery, "--where", SET_WHERE, "--label", "animal")),
        ("labels set --take-back", ("labels", "set", gallery, "--where", SET_WHERE, "--take-back")),
        ("dataset export", ("dataset", "export", gallery, "--out", out / "dataset")),
        ("backup", ("backup", gallery, "--out", out / "backup.zip", "--overwrite")),
        ("train --frozen", ("train", gallery, "--frozen", "--backbone", model, "--out", run)),
        ("audit", ("audit", run)),
        ("train", ("train", gallery, "--out", out / "run-finetuned")),
    ]
    steps: list[tuple[str, Step]] = [(name, partial(_measure, *words)) for name, words in commands]
    steps.insert(-3, ("views", partial(_visit, gallery, log=out / "serve.log")))
    steps.insert(2, ("new photos", partial(_add_photos, photos)))
    return steps


def _measure(*words: str | Path) -> dict[str, Any]:
    if "--out" in words and "--overwrite" not in words:  # what a stopped command left
        shutil.rmtree(words[words.index("--out") + 1], ignore_errors=True)
    measured = run_retrieval(*words)
    plain = {name: value for name, value in measured.document.items() if isinstance(value, int | float | str)}
    costs = {"seconds": measured.seconds, "processor_s": measured.processor_s, "peak_mib": measured.peak_mib}
    return {**costs, "document": plain}


def _add_photos(photos: Path) -> dict[str, Any]:
    """Mirror images of some photos beside them."""
    paths = list_images(photos)
    for path in take_evenly(paths, round(len(paths) * NEW_SHARE)):
        with Image.open(path) as image:
            ImageOps.mirror(image).save(path.with_name(f"mirrored-{path.name}"), quality=85)
    return {"images": len(paths)}


def _visit(gallery: Path, *, log: Path) -> dict[str, float]:
    """Seconds from the server's start, or of a request, until each view is there; and the server's memory."""
    found: dict[str, float] = {}
    with run_ours(gallery, log=log) as server, httpx.Client(base_url=server.url, timeout=_WAIT_S) as client:

        def ask(name: str, path: str, *, since: float | None = None, body: dict[str, Any] | None = None) -> None:
            started = since or time.perf_counter()
            while True:
                answer = client.get(path) if body is None else client.post(path, json=body)
                if answer.status_code == 200:
                    break
                if answer.status_code not in (202, 503):
                    answer.raise_for_status()
                time.sleep(_POLL_S)
            found[name] = time.perf_counter() - started

        ask("ready, since the start", "/v1/ready", since=server.started)
        for view in VIEWS:
            client.get(f"/v1/{view}")  # begins what is computed in the background
        ask("first 48 images, meanwhile", "/v1/images?limit=48")
        ask("search by an image, meanwhile", "/v1/search", body={"queries": [{"image_id": 1}], "k": 48})
        begun, waiting = time.perf_counter(), list(VIEWS)
        while waiting:
            for view in waiting.copy():
                if client.get(f"/v1/{view}").status_code == 200:
                    found[f"{view}, since it was asked for"] = time.perf_counter() - begun
                    waiting.remove(view)
            time.sleep(_POLL_S)
        for again in ("", ", again"):
            ask(f"facets{again}", "/v1/facets")
            ask(f"filter by label{again}", "/v1/images?limit=48&where=label%20LIKE%20'BMW%25'")
            ask(f"search by an image{again}", "/v1/search", body={"queries": [{"image_id": 7}], "k": 48})
            ask(f"search by words{again}", "/v1/search", body={"queries": [{"text": "bmw"}], "k": 48})
        found["peak MiB"] = psutil.Process(server.pid).memory_info().rss / 2**20
    return found


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="Folder of photos, gallery and record.")
    parser.add_argument("--images", type=int, nargs="+", default=[225_000])
    parser.add_argument("--model", type=Path, help="ONNX file; default: one that embeds thumbnails.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", default=[""], help="Steps with one of these in their name.")
    options = parser.parse_args(arguments)
    options.out = options.out.resolve()
    return options


if __name__ == "__main__":
    with ending_in_words("at_scale"):
        main()
