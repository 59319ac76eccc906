"""The main job on real photos with their own label noise: train, export, index, search, evaluate, audit.

Trains on all folders of the clothing photos (benchmarks/README.md), frozen MobileNetV2, 64-d, by the default recipe and
by the paper's. Also evaluates the untrained baselines of the same backbone through the same export and index, and
audits the labels.

    python -m benchmarks.training.clothing_photos --out bench/clothing
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

from benchmarks.common.record import find_photos, find_weights, print_machine, run_retrieval, write_record
from benchmarks.common.tables import format_table
from index.gallery.gallery import Gallery
from retrieval_app.demo.sheets import draw_sheet, neighbour_tiles


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    out = "folder for everything made, pictures and record.json"
    parser.add_argument("--out", type=Path, required=True, help=out)
    parser.add_argument("--photos", type=Path, help="folder of class folders (default: those of RETRIEVAL_SHARED)")
    parser.add_argument("--backbone", default="mobilenet_v2")
    parser.add_argument("--weights", help="default: the MobileNetV2 of RETRIEVAL_SHARED")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    out: Path = options.out
    photos, cache = find_photos(options.photos), out / "cache"
    backbone = ("--backbone", options.backbone, "--weights", find_weights(options.weights))
    results: dict[str, Any] = {}
    for name, recipe in (("default", ()), ("spa", ("--recipe", "paper", "--no-trial"))):
        shutil.rmtree(out / f"run-{name}", ignore_errors=True)
        where = ("--out", out / f"run-{name}", "--cache", cache, "--seed", options.seed)
        trained = run_retrieval("train", photos, *where, *backbone, *recipe)
        results[f"train-{name}"] = {**trained.document, "peak_mib": round(trained.peak_mib)}
    exports = {
        "default": [out / "run-default"], "spa": [out / "run-spa"], "raw": backbone,
        "pca-whitened": [*backbone, "--whiten", photos, "--embedding-dim", 64, "--cache", cache],
    }  # fmt: skip
    for name, arguments in exports.items():
        model, gallery = out / f"{name}.onnx", out / f"gallery-{name}"
        shutil.rmtree(gallery, ignore_errors=True)
        exported = run_retrieval("export", *arguments, "--out", model)
        built = run_retrieval("index", "build", model, photos, "--out", gallery, "--no-cache")
        evaluated = run_retrieval("evaluate", gallery)
        index = {**built.document, "peak_mib": round(built.peak_mib)}
        results[name] = {"export": exported.document, "index": index, "evaluate": evaluated.document}
    query = find_query(photos)
    searched = run_retrieval("search", out / "gallery-default", query, "-k", 5)
    results["search"] = {"seconds": searched.seconds, **searched.document}
    audited = run_retrieval("audit", out / "run-default", "--cache", cache)
    results["audit"] = {"seconds": audited.seconds, "peak_mib": round(audited.peak_mib), **audited.document}
    gallery = Gallery.open(out / "gallery-default")
    tiles = neighbour_tiles(gallery, gallery.sample(5, seed=options.seed), neighbours=5)
    draw_sheet(tiles, out / "neighbours.png", columns=6, title="Five photos and their nearest others")
    print_machine([options.seed])
    print_results(results, query=query, out=out)
    write_record(out / "record.json", settings=vars(options), results=results)


def find_query(photos: Path) -> Path:
    """A photo to search with: the first of the folder of skirts, or of any folder."""
    folder = photos / "skirt"
    return next(path for path in sorted((folder if folder.is_dir() else photos).rglob("*")) if path.is_file())


def print_results(results: dict[str, Any], *, query: Path, out: Path) -> None:
    rows = []
    for name in ("default", "spa", "raw", "pca-whitened"):
        scores, width = results[name]["evaluate"], results[name]["export"]["embedding_dim"]
        cells = [*scores["recall"].values(), scores["map_at_r"]]
        rows.append([name, str(width), *(f"{100 * cell:.2f}" for cell in cells)])
    head = ["leave-one-out over all photos, %", "width", "Recall@1", "@2", "@4", "@8", "@16", "MAP@R"]
    print("\n" + format_table(head, rows))
    index = results["default"]["index"]
    rate = f"{index['images_per_second']:.0f} images/s"
    print(f"\nindexed {index['indexed']} photos at {rate}, peak {index['peak_mib']} MiB")
    print(f"search with {query.parent.name}/{query.name}: {results['search']['seconds']:.2f} s from a cold start")
    for hit in results["search"]["results"]:
        print(f"  {hit['rank']}  {hit['score']:.4f}  {hit['label']:<12} {hit['path']}")
    audit = out / "run-default" / "audit" / "audit.html"
    print(f"suspicious labels: {audit}; neighbours: {out / 'neighbours.png'}")


if __name__ == "__main__":
    main()
