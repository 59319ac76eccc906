"""Benchmarks: miniature copies of the official downloads, whole and damaged."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from index.errors import InputError
from index.images.image_files import read_image
from training.data.datasets import Dataset, Record
from training.data.protocols import PUBLISHED, WEB_PER_CLASS, load_protocol


def save_images(folder: Path, names: Sequence[str]) -> None:
    """One tiny JPEG, linked to every other name: the lists are what is read here."""
    first = folder / names[0]
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), "red").save(first, format="JPEG")
    for name in names[1:]:
        if not (folder / name).exists():
            (folder / name).hardlink_to(first)


def write_lines(path: Path, lines: Sequence[object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


def make_cub(root: Path) -> Path:
    """Two images of each of the classes 1, 2, 100, 101 and 200, listed under image ids that have gaps."""
    top = root / "CUB_200_2011"
    classes = [f"{number:03}.Bird_{number}" for number in range(1, 201)]
    write_lines(top / "classes.txt", [f"{number} {name}" for number, name in enumerate(classes, start=1)])
    names = [f"{classes[number - 1]}/Bird_{i}.jpg" for number in (1, 2, 100, 101, 200) for i in (0, 1)]
    write_lines(top / "images.txt", [f"{3 * i + 1} {name}" for i, name in enumerate(names)])
    write_lines(top / "image_class_labels.txt", [f"{3 * i + 1} {int(n[:3])}" for i, n in enumerate(names)])
    save_images(top / "images", names)
    return root


def make_sop(root: Path) -> Path:
    top = root / "Stanford_Online_Products"
    header = "image_id class_id super_class_id path"
    train = ["1 1 1 bicycle_final/1_0.JPG", "2 1 1 bicycle_final/1_1.JPG", "3 2 1 bicycle_final/2_0.JPG"]
    test = ["4 11319 12 toaster_final/9_0.JPG", "5 11319 12 toaster_final/9_1.JPG"]
    write_lines(top / "Ebay_train.txt", [header, *train])
    write_lines(top / "Ebay_test.txt", [header, *test])
    save_images(top, [line.split()[3] for line in train + test])
    return root


IN_SHOP_ROWS = [
    "img/WOMEN/Dresses/id_00000002/02_1_front.jpg              id_00000002     train     ",
    "img/WOMEN/Dresses/id_00000002/02_2_side.jpg               id_00000002     train     ",
    "img/MEN/Denim/id_00000080/01_1_front.jpg                  id_00000080     query     ",
    "img/MEN/Denim/id_00000080/01_2_side.jpg                   id_00000080     gallery   ",
    "img/MEN/Denim/id_00000080/01_3_back.jpg                   id_00000080     query     ",
    "img/MEN/Denim/id_00000090/01_1_front.jpg                  id_00000090     gallery   ",
]


def make_in_shop(root: Path, *, lists: str = "Eval", images: str = "Img") -> Path:
    header = "image_name item_id evaluation_status"
    write_lines(root / lists / "list_eval_partition.txt", [len(IN_SHOP_ROWS), header, *IN_SHOP_ROWS])
    save_images(root / images, [line.split()[0] for line in IN_SHOP_ROWS])
    return root


def make_webvision(root: Path, *, per_class: int = 2) -> Path:
    """WebVision 1.0 in small: classes 0, 99, 100, 199 and 500 of 1,000."""
    write_lines(root / "info/synsets.txt", [f"n{number:08} crane, bird {number}" for number in range(1000)])
    save_images(root, ["google/q0001/first.jpg"])
    for engine in ("google", "flickr"):
        names = {f"{engine}/q{number:04}/{i}.jpg": number for number in (0, 99, 100) for i in range(per_class)}
        rows = [f"{name} {number}" for name, number in names.items()]
        write_lines(root / f"info/train_filelist_{engine}.txt", rows)
        save_images(root, list(names))
    val = {f"val{i:06}.jpg": number for i, number in enumerate([199, 500, 100, 0, 199, 100], start=1)}
    write_lines(root / "info/val_filelist.txt", [f"{name} {number}" for name, number in val.items()])
    save_images(root / "val_images_256", list(val))
    return root


def make_tiny_imagenet(root: Path) -> Path:
    """The official layout with 103 classes that are not sorted, the second with more images than are used."""
    top = root / "tiny-imagenet-200"
    wnids = [f"n{(7 * number) % 103:08}" for number in range(103)]
    write_lines(top / "wnids.txt", wnids)
    write_lines(top / "words.txt", [f"{wnid}\tcrane, bird" for wnid in wnids])
    for number, wnid in enumerate(wnids):
        count = {1: 302, 101: 76}.get(number, 1)
        save_images(top / "train" / wnid / "images", [f"{wnid}_{i}.JPEG" for i in range(count)])
        write_lines(top / "train" / wnid / f"{wnid}_boxes.txt", [f"{wnid}_0.JPEG\t0\t10\t63\t58"])
    save_images(top / "val/images", ["val_0.JPEG"])
    write_lines(top / "val/val_annotations.txt", [f"val_0.JPEG\t{wnids[0]}\t0\t32\t44\t62"])
    save_images(top / "test/images", ["test_0.JPEG"])
    return root


CAR_NAMES = [f"Make Model {number} 2012" for number in range(1, 197)]
CAR_CLASSES = [196, 1, 98, 99, 1, 98, 196]


def save_annotations(path: Path, files: Sequence[str], classes: Sequence[int], *, field: str) -> None:
    """A 1 x N struct array and a 1 x 196 cell array, as MATLAB writes them."""
    annotations = np.zeros((1, len(files)), dtype=[(field, "O"), ("bbox_x1", "O"), ("class", "O"), ("test", "O")])
    for i, (file, number) in enumerate(zip(files, classes, strict=True)):
        annotations[0, i] = (file, np.uint16(30), np.uint8(number), np.uint8(0))
    names = np.empty((1, len(CAR_NAMES)), dtype=object)
    names[0, :] = CAR_NAMES
    path.parent.mkdir(parents=True, exist_ok=True)
    savemat(path, {"annotations": annotations, "class_names": names}, do_compression=True)


def make_cars(root: Path) -> Path:
    files = [f"car_ims/{i:06}.jpg" for i in range(1, len(CAR_CLASSES) + 1)]
    save_annotations(root / "cars_annos.mat", files, CAR_CLASSES, field="relative_im_path")
    save_images(root, files)
    return root


def make_cars_kit(root: Path, *, test_list: str = "") -> Path:
    files = [f"{i:05}.jpg" for i in range(1, 5)]
    save_annotations(root / "devkit/cars_train_annos.mat", files, CAR_CLASSES[:4], field="fname")
    save_annotations(root / "devkit/cars_meta.mat", [], [], field="fname")
    test = root / test_list / "cars_test_annos_withlabels.mat"
    save_annotations(test, files[:3], CAR_CLASSES[4:], field="fname")
    save_images(root / "cars_train", files)
    save_images(root / "cars_test", files[:3])
    return root


MAKERS: dict[str, Callable[[Path], Path]] = {
    "cub-200-2011": make_cub,
    "cars-196": make_cars,
    "sop": make_sop,
    "in-shop": make_in_shop,
    "webvision": make_webvision,
    "tiny-imagenet": make_tiny_imagenet,
}


def listed(dataset: Dataset, root: Path) -> list[tuple[str, str]]:
    return [(record.path.relative_to(root).as_posix(), record.label) for record in dataset.records]


@pytest.mark.parametrize("name", MAKERS)
def test_splits_share_no_class_images_are_read_and_other_sizes_warned_of(name: str, tmp_path: Path, caplog) -> None:
    train, test = load_protocol(name, MAKERS[name](tmp_path))
    labels = [{record.label for record in split.records} for split in (train, test)]
    assert labels[0]
    assert labels[1]
    assert not labels[0] & labels[1]
    for record in (*train.records[:3], *test.records[:3]):
        assert record.path.is_absolute()
        assert read_image(record.path, target_side=1).mode == "RGB"
    assert (test.is_gallery is None) == (name != "in-shop")
    images, classes = PUBLISHED[name][0]
    assert f"{name}: the training split has {len(train.records)} images of" in caplog.text
    assert f"published are {images} of {classes}" in caplog.text
    assert "test split" in caplog.text


@pytest.mark.parametrize("name", MAKERS)
def test_a_folder_without_the_download_is_refused_with_the_file_expected(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no such file; .* has it as .*\.(txt|mat)"):
        load_protocol(name, tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        load_protocol(name, tmp_path / "nowhere")


@pytest.mark.parametrize(("name", "top"), [("sop", "Stanford_Online_Products"), ("tiny-imagenet", "tiny-imagenet-200")])
def test_the_folder_may_be_the_archives_own_or_the_one_around_it(name: str, top: str, tmp_path: Path) -> None:
    assert load_protocol(name, MAKERS[name](tmp_path)) == load_protocol(name, tmp_path / top)


@pytest.mark.parametrize(
    ("name", "file", "line"),
    [
        ("cub-200-2011", "CUB_200_2011/image_class_labels.txt", "7 too many columns are in this line"),
        ("sop", "Stanford_Online_Products/Ebay_test.txt", "7 too many columns are in this line"),
        ("in-shop", "Eval/list_eval_partition.txt", "lonely"),
        ("webvision", "info/val_filelist.txt", "7 too many columns are in this line"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(name: str, file: str, line: str, tmp_path: Path) -> None:
    path = MAKERS[name](tmp_path) / file
    number = len(path.read_text().splitlines()) + 2
    path.write_text(f"{path.read_text()}\n{line}\n")
    with pytest.raises(InputError, match=rf"{path.name}, line {number}: expected .*found `{line}`"):
        load_protocol(name, tmp_path)


def test_windows_line_ends_and_a_byte_order_mark_change_nothing(tmp_path: Path) -> None:
    path = make_cub(tmp_path) / "CUB_200_2011/image_class_labels.txt"
    expected = load_protocol("cub-200-2011", tmp_path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n") + b"\r\n")
    assert load_protocol("cub-200-2011", tmp_path) == expected


def test_a_list_that_is_no_text_has_no_header_or_names_one_split_only_is_refused(tmp_path: Path) -> None:
    top = make_sop(tmp_path) / "Stanford_Online_Products"
    train, test = top / "Ebay_train.txt", top / "Ebay_test.txt"
    whole = train.read_text()
    for content, said in (
        (whole.encode("utf-16"), r"Ebay_train\.txt, line 1: expected the header"),
        (whole.partition("\n")[2].encode(), "line 1: expected the header `image_id class_id super_class_id path`"),
    ):
        train.write_bytes(content)
        with pytest.raises(InputError, match=said):
            load_protocol("sop", tmp_path)
    train.write_text(whole)
    write_lines(test, test.read_text().splitlines()[:1])
    with pytest.raises(InputError, match="its lists name no test image of sop"):
        load_protocol("sop", tmp_path)


@pytest.mark.parametrize(
    ("name", "images"),
    [
        ("cub-200-2011", "CUB_200_2011/images"),
        ("sop", "Stanford_Online_Products/toaster_final"),
        ("in-shop", "Img/img/WOMEN"),
        ("webvision", "val_images_256"),
        ("tiny-imagenet", "tiny-imagenet-200/train/n00000007/images"),
    ],
)
def test_images_that_were_not_unpacked_are_missed_before_any_work(name: str, images: str, tmp_path: Path) -> None:
    (MAKERS[name](tmp_path) / images).rename(tmp_path / "elsewhere")
    of_class = r"n00000007/images: no images \(\*\.JPEG\) of the class"
    with pytest.raises(InputError, match=rf"not unpacked; .*the first is .*\.(jpg|JPG); unpack .+|{of_class}"):
        load_protocol(name, tmp_path)


CUB, SOP = "CUB_200_2011/images", "Stanford_Online_Products"
CAR = "Make Model {} 2012"
SPLITS = {  # below a folder, what trains and what is searched, and the published K
    "cub-200-2011": (
        CUB,
        [(f"{name}/Bird_{i}.jpg", name) for name in ("001.Bird_1", "002.Bird_2", "100.Bird_100") for i in (0, 1)],
        [(f"{name}/Bird_{i}.jpg", name) for name in ("101.Bird_101", "200.Bird_200") for i in (0, 1)],
        (1, 2, 4, 8),
    ),
    "cars-196": (
        "",
        [(f"car_ims/{i:06}.jpg", CAR.format(number)) for i, number in ((2, 1), (3, 98), (5, 1), (6, 98))],
        [(f"car_ims/{i:06}.jpg", CAR.format(number)) for i, number in ((1, 196), (4, 99), (7, 196))],
        (1, 2, 4, 8),
    ),
    "sop": (
        SOP,
        [("bicycle_final/1_0.JPG", "1"), ("bicycle_final/1_1.JPG", "1"), ("bicycle_final/2_0.JPG", "2")],
        [("toaster_final/9_0.JPG", "11319"), ("toaster_final/9_1.JPG", "11319")],
        (1, 10, 100, 1000),
    ),
    "webvision": (
        "",
        [
            (f"{engine}/q{number:04}/{i}.jpg", f"n{number:08}")
            for engine in ("google", "flickr")
            for number in (0, 99)
            for i in (0, 1)
        ],
        [(f"val_images_256/val{i:06}.jpg", f"n{number:08}") for i, number in ((1, 199), (3, 100), (5, 199), (6, 100))],
        (1, 2, 4, 8, 16),
    ),
}


@pytest.mark.parametrize("name", SPLITS)
def test_a_benchmark_is_split_as_its_lists_or_its_first_classes_say(name: str, tmp_path: Path) -> None:
    top, *expected, ks = SPLITS[name]
    splits = load_protocol(name, MAKERS[name](tmp_path))
    assert [listed(split, tmp_path / top) for split in splits] == expected
    assert splits[1].ks == ks


@pytest.mark.parametrize(("test_list", "top"), [("", "stanford_cars"), ("devkit", "")])
def test_cars_with_their_development_kit_are_split_by_class_too(test_list: str, top: str, tmp_path: Path) -> None:
    make_cars_kit(tmp_path / top, test_list=test_list)
    train, test = load_protocol("cars-196", tmp_path)
    files = (("cars_train/00002", 1), ("cars_train/00003", 98), ("cars_test/00001", 1), ("cars_test/00002", 98))
    assert listed(train, tmp_path / top) == [(f"{file}.jpg", CAR.format(number)) for file, number in files]
    assert len(test.records) == 3


def test_a_matlab_file_cut_or_overwritten_anywhere_is_refused(tmp_path: Path) -> None:
    path = make_cars(tmp_path) / "cars_annos.mat"
    whole = path.read_bytes()
    for length in (0, 1, 60, 127, 128, 130, 140, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"cars_annos\.mat"):
            load_protocol("cars-196", tmp_path)
    path.write_bytes(whole[:200] + bytes(16) + whole[216:])
    with pytest.raises(InputError, match=r"cars_annos\.mat"):
        load_protocol("cars-196", tmp_path)


@pytest.mark.parametrize(
    ("top", "lists", "images"),
    [("", "Eval", "Img"), ("In-shop Clothes Retrieval Benchmark", "Anno", ""), ("", "", "img")],
)
def test_in_shop_queries_are_no_gallery_members(top: str, lists: str, images: str, tmp_path: Path) -> None:
    make_in_shop(tmp_path / top, lists=lists, images=images)
    train, test = load_protocol("in-shop", tmp_path)
    base = tmp_path / top / images
    assert listed(train, base) == [(row.split()[0], "id_00000002") for row in IN_SHOP_ROWS[:2]]
    assert listed(test, base) == [(row.split()[0], row.split()[1]) for row in IN_SHOP_ROWS[2:]]
    assert test.is_gallery == (False, True, False, True)
    assert test.ks == (1, 10, 20, 40)


def test_webvision_2_has_its_validation_list_and_images_elsewhere(tmp_path: Path) -> None:
    expected = load_protocol("webvision", make_webvision(tmp_path))
    (tmp_path / "info/val_filelist.txt").rename(tmp_path / "val_filelist.txt")
    (tmp_path / "val_images_256").rename(tmp_path / "val_images_resized")
    found = load_protocol("webvision", tmp_path)
    assert found[0] == expected[0]
    moved = [listed(one[1], tmp_path / f"val_images_{end}") for one, end in ((found, "resized"), (expected, "256"))]
    assert moved[0] == moved[1]


def test_webvision_draws_at_most_300_images_of_a_class_from_both_engines(tmp_path: Path) -> None:
    make_webvision(tmp_path, per_class=200)
    train, _ = splits = load_protocol("webvision", tmp_path)
    drawn = Counter(record.label for record in train.records)
    assert drawn == {"n00000000": WEB_PER_CLASS, "n00000099": WEB_PER_CLASS}
    engines = Counter(path.partition("/")[0] for path, _ in listed(train, tmp_path))
    assert min(engines.values()) > 200
    assert splits == load_protocol("webvision", tmp_path)


def test_tiny_imagenet_takes_classes_in_the_order_of_their_list_and_images_by_name(tmp_path: Path) -> None:
    train, test = load_protocol("tiny-imagenet", make_tiny_imagenet(tmp_path))
    wnids = (tmp_path / "tiny-imagenet-200/wnids.txt").read_text().split()
    assert wnids != sorted(wnids)
    counts = [Counter(record.label for record in split.records) for split in (train, test)]
    assert [list(count) for count in counts] == [wnids[:100], wnids[100:]]
    assert (counts[0][wnids[1]], counts[1][wnids[101]]) == (300, 74)
    names = [record.path.name for record in train.records if record.label == wnids[1]]
    assert names == sorted(f"{wnids[1]}_{i}.JPEG" for i in range(302))[:300]
    assert test.ks == (1, 2, 4, 8, 16)


@pytest.mark.parametrize("top", ["", "tiny-imagenet"])
def test_tiny_imagenet_that_is_split_already_is_taken_as_it_is(top: str, tmp_path: Path) -> None:
    root = tmp_path / top
    save_images(root / "train", ["n1/n1_0.JPEG", "n1/n1_1.JPEG", "n2/n2_0.JPEG"])
    save_images(root / "test", ["n3/n3_0.JPEG"])
    train, test = load_protocol("tiny-imagenet", tmp_path)
    names = ("n1/n1_0.JPEG", "n1/n1_1.JPEG", "n2/n2_0.JPEG")
    assert train.records == tuple(Record(root / "train" / name, name[:2]) for name in names)
    assert listed(test, root) == [("test/n3/n3_0.JPEG", "n3")]


def test_tiny_imagenet_without_its_list_of_classes_is_not_taken_for_a_split(tmp_path: Path) -> None:
    top = make_tiny_imagenet(tmp_path) / "tiny-imagenet-200"
    (top / "wnids.txt").unlink()
    with pytest.raises(InputError, match=r"wnids\.txt: no such file; tiny-imagenet-200\.zip has it"):
        load_protocol("tiny-imagenet", top)
