"""In-Shop Clothes Retrieval: the one benchmark whose queries search a gallery of other images."""

from __future__ import annotations

from pathlib import Path

from index.errors import InputError
from index.text import printable_path, valid_text
from training.data.datasets import Record
from training.data.protocols.download import find_download, locate_images, read_lines, wrong_line
from training.data.protocols.protocol import Protocol, as_dataset

ARCHIVE = "the In-shop Clothes Retrieval Benchmark of DeepFashion"
LIST = "list_eval_partition.txt"
HEADER = "image_name item_id evaluation_status"
STATUSES = ("train", "query", "gallery")


def load_in_shop(root: Path) -> Protocol:
    """The official list; a label is the item_id, and the test split holds queries and gallery in the list's order."""
    top = "In-shop Clothes Retrieval Benchmark"
    tops = [f"{place}{part}" for place in (f"{top}/", "") for part in ("Eval", "Anno")]
    lists = find_download(root, tops=[*tops, top], marker=LIST, archive=ARCHIVE)
    folder = lists.parent if lists.name in ("Eval", "Anno") else lists
    rows = _read_partition(lists / LIST)
    base = {
        status: locate_images(
            folder,
            places=["", "Img", "img"],
            names=[name for name, _, seen in rows if seen == status],
            archive=f"Img/img.zip of {ARCHIVE}",
        )
        for status in STATUSES
    }
    listed = [(Record(base[status] / name, valid_text(item)), status) for name, item, status in rows]
    train = as_dataset(record for record, status in listed if status == "train")
    test = as_dataset(record for record, status in listed if status != "train")
    is_gallery = tuple(status == "gallery" for _, status in listed if status != "train")
    return Protocol("in-shop", train, test, is_gallery)


def _read_partition(path: Path) -> list[tuple[str, str, str]]:
    lines = iter(read_lines(path, archive=ARCHIVE))
    number, count = next(lines, (1, ""))
    if not count.isdecimal():
        raise wrong_line(path, number, count, form="the number of images")
    number, header = next(lines, (2, ""))
    if header.split() != HEADER.split():
        raise wrong_line(path, number, header, form=f"the header `{HEADER}`")
    rows = []
    for number, line in lines:
        columns = line.split()
        if len(columns) != 3 or columns[2] not in STATUSES:
            raise wrong_line(path, number, line, form=f"`{HEADER}` with a status of {', '.join(STATUSES)}")
        rows.append((columns[0], columns[1], columns[2]))
    if len(rows) != int(count):
        raise InputError(
            f"{printable_path(str(path))}: its first line announces {count} images and {len(rows)} follow; "
            "download it again, or mend that line if you cut the list yourself"
        )
    return rows
