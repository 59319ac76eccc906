"""Conditions with the positions of the rows that they keep, and any tree with any rows."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from hypothesis import strategies as st

from index.filters.condition import (
    OWN_COLUMNS,
    Among,
    And,
    Column,
    Compare,
    Condition,
    Constant,
    HasWord,
    IsNull,
    Like,
    Not,
    Or,
    join,
)
from index.filters.parser import find_words, parse_filter
from tests.index.filters.on_row import Row

Flat: TypeAlias = Mapping[str, object]


def make_rows(flat: Sequence[Flat]) -> list[Row]:
    """Rows with the ids 1, 2, …; all but `own path`, `own label`, `own tags` and `own source` is metadata."""
    return [
        {
            "id": number,
            "label": row.get("own label"),
            "tags": row.get("own tags", ()),
            "path": row.get("own path", f"{number}.jpg"),
            "source": row.get("own source", "/a"),
            "metadata": {name: value for name, value in row.items() if not name.startswith("own ")},
        }
        for number, row in enumerate(flat, start=1)
    ]


def keep_of_values(values: Sequence[object], kept: Sequence[object]) -> list[int]:
    """The places of the kept values, which may be equal without being the same: 1, 1.0 and True."""
    wanted = list(map(repr, kept))
    return [number for number, value in enumerate(values) if repr(value) in wanted]


SHOPS: list[Flat] = [
    {"shop": "x", "price": 5, "own label": "hat"},
    {"shop": "x", "price": 30, "own label": "shoe"},
    {"shop": "it's", "price": 5},
    {"price": -1.5},
]
SHOP_CASES = [
    ("shop = 'x' and price < 20", [0]),
    ("shop = 'it''s'", [2]),
    ('shop = "it\'s"', [2]),
    ("price not in (5)", [1, 3]),
    ("label like '%A_'", [0]),
    ("label NOT LIKE 'h%'", [1]),
    ("price between 5 and 30 and not (label = 'hat')", [1]),
    ("shop is not null and label is null", [2]),
    ("NOT shop IS NULL AND (label <> 'hat' OR label IS NULL)", [1, 2]),
    ("id >= 2 and id != 3", [1, 3]),
    ("id = ' 2 ' OR id IN (' 3 ') OR id = '4'", [3]),
    ("(price=5 or price=30)and label='shoe'", [1]),
    (' \n"price" <=5. ', [0, 2, 3]),
]
NAMES: list[Flat] = [
    {"on sale": 1, "a.b": 2, 'say "hi"': 3, "名前": 4, "in": 5, "label": 6, "\\": 7, "": 8, "x-y": 9},
    {"exif": {"iso": 100, "f.n": {'"': "é"}}, "own label": "cat", "metadata": {"exif": 1}},
    {"exif": "iso", "a": {"b": 2}},
]
NAME_CASES = [
    *(('"on sale" = 1', [0]), ("a.b = 2", [2]), ('"say ""hi""" = 3', [0]), ("名前 = 4", [0]), ('"in" = 5', [0])),
    *(("metadata.label = 6", [0]), ('"label" = "cat"', [1]), ('"\\" = 7 AND "" = 8 AND x-y=9', [0])),
    *(('exif."f.n"."""" = \'é\'', [1]), ("metadata.exif = 'iso'", [2]), ("metadata.metadata.exif = 1", [1])),
    *(('"metadata".exif = 1', [1]), ("exif.iso IS NULL", [0, 2])),
]
ODD = os.fsdecode(b"caf\xe9")
PLACES: list[Flat] = [
    {"own path": f"{ODD}/1.jpg", "own label": "caf\\xe9"},
    {"own path": "CAFÉ/2.jpg", "own source": "/b"},
]
PLACE_CASES = [
    (f"path = '{ODD}/1.jpg'", [0]),
    (f"path LIKE '{ODD}/%'", [0]),
    ("path LIKE 'café/_.JPG'", [1]),
    (f"path IN ('x', '{ODD}/1.jpg', 'CAFÉ/2.jpg')", [0, 1]),
    ("path < 'a'", [1]),
    (f"label = '{ODD}'", [0]),
    ("source = '/b'", [1]),
    ("source LIKE '%A'", [0]),
]
TAGGED: list[Flat] = [
    {"own tags": ("keep", "summer"), "tag": "blurred", "split": "train"},
    {"own tags": ("blurred",)},
    {"own tags": ("10",), "own label": "keep"},
    {},
]
TAG_CASES = [
    ("tag = 'keep'", [0]),
    ("tag != 'keep'", [1, 2, 3]),
    ("NOT tag = 'keep' AND tag IS NOT NULL", [1, 2]),
    ("tag = 'keep' AND tag = 'summer'", [0]),
    ("tag IN ('summer', 'blurred')", [0, 1]),
    ("tag NOT IN ('summer', 'blurred')", [2, 3]),
    ("tag LIKE 'S%' OR tag = 10", [0, 2]),
    ("tag IS NULL", [3]),
    ("metadata.tag = 'blurred'", [0]),
]
MISSING: list[Flat] = [{"x": 1}, {"x": None, "y": 1}, {"y": 1}, {}]
MISSING_CASES = [
    *(("x != 5", [0]), ("x NOT IN (5)", [0]), ("NOT (x = 5 OR x > 3)", [0]), ("x IS NOT NULL", [0])),
    *(("x IS NULL", [1, 2, 3]), ("NOT x IS NOT NULL", [1, 2, 3]), ("x != 5 OR y = 1", [0, 1, 2])),
]
PRICES = [19.9, "19.90", " 7 ", "1e1", 42, "n/a", "", "12 EUR", None, "0x10", [5], "5,5"]
MIXED = [42, "42", "042", 42.0, 7, "7", "seven", None]
TRUTHS = [True, "True", 1, "1", False, "FALSE", 0, "yes", None]
TEXTS = ["ÉTÉ 10%", "été 10*", "a[b]?", "a\nb", 425, [1, "b"], 1e300, 0.00001]
VALUE_CASES: list[tuple[Sequence[object], str, Sequence[object]]] = [
    (PRICES, "x < 20", [19.9, "19.90", " 7 ", "1e1"]),
    (PRICES, "x > 0", [19.9, "19.90", " 7 ", "1e1", 42]),
    (PRICES, "x = 19.9", [19.9, "19.90"]),
    (PRICES, "x != 19.9", [value for value in PRICES if value not in (19.9, "19.90", None)]),
    (PRICES, "NOT x < 20", [42]),
    (PRICES, "x >= 20", [42]),
    (PRICES, "x IN (10, 42)", ["1e1", 42]),
    ([2**53 + 1, 2**53, str(2**53 + 1)], f"x = {2**53 + 1}", [2**53 + 1, str(2**53 + 1)]),
    ([1e300], "x < 1e999", [1e300]),
    (MIXED, "x = '42'", [42, "42", 42.0]),
    (MIXED, "x IN ('42', 'seven')", [42, "42", 42.0, "seven"]),
    (MIXED, "x NOT IN ('42', '7')", ["042", "seven"]),
    (MIXED, "x > '5'", [42, 42.0, 7, "7", "seven"]),  # "42" is before "5" as a text
    (MIXED, "x > 'm'", ["seven"]),
    (MIXED, "x != 'm'", MIXED[:-1]),
    (["2024-05-31", "2023-12-01", 2024], "x >= 2024-01-01", ["2024-05-31"]),
    (TRUTHS, "x = TRUE", TRUTHS[:4]),
    (TRUTHS, "x IN (true)", TRUTHS[:4]),
    (TRUTHS, "x = false", [False, "FALSE", 0]),
    (TRUTHS, "x != true", [False, "FALSE", 0, "yes"]),
    (TEXTS, "x LIKE 'été%'", TEXTS[:2]),
    (TEXTS, "x LIKE '%*'", ["été 10*"]),
    (TEXTS, "x LIKE 'A[B]?'", ["a[b]?"]),
    (TEXTS, "x LIKE '_\n_'", ["a\nb"]),
    (TEXTS, "x LIKE '4_5'", [425]),
    (TEXTS, "x LIKE '%\"B\"%'", [[1, "b"]]),
    (TEXTS, "x LIKE '1.0e_300' OR x LIKE '1.0E-05'", [1e300, 0.00001]),
]
FOUND: list[Flat] = [
    {
        "own path": "Shirts/Blue_one.jpg",
        "own label": "shirt",
        "own source": "/data/First",
        "brand": "M\u00fcller",
        "price": 19.9,
        "new": True,
    },
    {
        "own path": "pants/100%.jpg",
        "own label": "pants",
        "own source": "/data/First",
        "tags": ["summer", "Blue jeans"],
        "nested": {"deep": "c:\\x"},
    },
    {"own path": f"{ODD}/[a].jpg", "own source": "/data/second"},
    {
        "own path": "A\u0308rmel/x.jpg",
        "own label": "\u00c4rmel",
        "own source": "/data/second",
        "brand": 'blue\'s "best"',
    },
    {"own path": "blueXone.jpg", "own label": "o'brien", "own source": "/data/second"},
]
WORD_CASES = [
    ("blue", [0, 1, 3, 4]),
    ("BLUE shirt", [0]),
    ("  blue\tjeans ", [1]),
    ("first", [0, 1]),
    ("second o'brien", [4]),
    ("m\u00fcller", [0]),
    ("M\u00dcLLER", [0]),
    ("19.9", [0]),
    ("summer", [1]),
    ("c:\\x", [1]),
    ('"best"', [3]),
    ("nothing", []),
    ("brand", []),  # a name of metadata is no value of it
    ("true", []),
    ("blue_one", [0]),
    ("0%", [1]),
    ("%", [1]),
    ("[a]", [2]),
    ("*", []),
    ("?", []),
    ("blue' OR 1=1 --", []),
    ("\u00e4rmel/", [3]),
    ("a\u0308rmel/", [3]),
    ("\u00c4RMEL", [3]),
    ("A\u0308RMEL", [3]),
    ("caf\udce9", [2]),
]
JOINED = join([parse_filter("label = 'shirt' OR price > 5"), find_words("blue"), parse_filter("id < 4 OR id > 0")])

CASES: list[tuple[Condition, list[Row], list[int]]] = [
    *((parse_filter(text), make_rows(SHOPS), kept) for text, kept in SHOP_CASES),
    *((parse_filter(text), make_rows(NAMES), kept) for text, kept in NAME_CASES),
    *((parse_filter(text), make_rows(PLACES), kept) for text, kept in PLACE_CASES),
    *((parse_filter(text), make_rows(TAGGED), kept) for text, kept in TAG_CASES),
    *((parse_filter(text), make_rows(MISSING), kept) for text, kept in MISSING_CASES),
    *(
        (parse_filter(text), make_rows([{"x": value} for value in values]), keep_of_values(values, kept))
        for values, text, kept in VALUE_CASES
    ),
    *((find_words(text), make_rows(FOUND), kept) for text, kept in WORD_CASES),
    (JOINED, make_rows(FOUND), [0]),
]


# --- any tree, and any rows

KEYS = ("price", "in", "x-y", "a b", "ä.b", 'q"t', "名前", "", "\\", "é\u0301😀", "label", "metadata", "a.b")
WORDS = ("n/a", "abc", "ABC", "été", "Été 5", "TRUE", "false", "it's", '"', "%_", "a*[b]?", "", " ", "10", "😀é")
NUMBERS = ("0", "1", "-1", "+7", "10", "19.90", "19.9", ".5", "5.", "1e1", "-2.25E0", "042", "9007199254740992")
VALUES = (
    st.none()
    | st.booleans()
    | st.sampled_from([0, 1, -1, 7, 10, 42, 19.9, 0.5, -2.25, 2**53])
    | st.sampled_from([*WORDS, *NUMBERS, " 7 ", "7\n", "1e", "0x10", "\u00a05"])
    | st.lists(st.sampled_from([1, "a", "été"]), max_size=2)
)
FILES = ("a/1.jpg", "A/été.jpg", "b/[1]_%.jpg", f"{ODD}/10")
METADATA = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6) | st.fixed_dictionaries(
    {"nest": VALUES | st.dictionaries(st.sampled_from(KEYS), VALUES | st.just({"deep": 7}), max_size=6)}
)
own_values = st.fixed_dictionaries(
    {
        "own path": st.sampled_from(FILES),
        "own label": st.none() | st.sampled_from(WORDS + NUMBERS),
        "own tags": st.lists(
            st.sampled_from([word for word in WORDS + NUMBERS if word.strip()]), max_size=2, unique=True
        ),
        "own source": st.sampled_from(FILES),
    }
)
some_rows = st.lists(
    st.builds(lambda own, metadata: own | metadata, own_values, METADATA),
    max_size=6,
    unique_by=lambda row: (row["own source"], row["own path"]),
).map(make_rows)

metadata_columns = st.sampled_from(
    [Column((key,)) for key in KEYS] + [Column(("nest", key)) for key in KEYS] + [Column(("nest", "ä.b", "deep"))]
)
any_columns = metadata_columns | st.sampled_from([OWN_COLUMNS["id"], OWN_COLUMNS["label"], OWN_COLUMNS["tag"]])
place_columns = st.sampled_from([OWN_COLUMNS["path"], OWN_COLUMNS["source"]])
texts = st.builds(Constant, st.just("text"), st.sampled_from(WORDS + NUMBERS + FILES + (" 7 ",)))
numbers = st.builds(Constant, st.just("number"), st.sampled_from(NUMBERS))
truths = st.builds(Constant, st.just("truth"), st.sampled_from(["0", "1"]))


def some_leaves(columns: st.SearchStrategy[Column], scalars: st.SearchStrategy[Constant]) -> st.SearchStrategy[Any]:
    """What asks one thing of one of the columns."""
    among = scalars | truths if scalars is not texts else texts
    signs = st.sampled_from(["=", "!=", "<", "<=", ">", ">="])
    return (
        st.builds(Compare, columns, signs, scalars)
        | st.builds(Compare, columns, st.sampled_from(["=", "!="]), among)
        | st.builds(Among, columns, st.lists(among, min_size=1, max_size=4).map(tuple))
        | st.builds(Like, columns, st.text("abÉé5.%_*[]?1", max_size=4))
        | st.builds(IsNull, columns)
    )


def join_any(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves,
        lambda inner: (
            st.builds(Not, inner)
            | st.builds(
                lambda kind, parts: kind(tuple(parts)),
                st.sampled_from([And, Or]),
                st.lists(inner, min_size=2, max_size=4),
            )
        ),
        max_leaves=8,
    )


leaves_of_texts = some_leaves(any_columns, texts | numbers) | some_leaves(place_columns, texts)
written_conditions = join_any(leaves_of_texts)
"""Trees that a text of the language can stand for."""
any_conditions = join_any(leaves_of_texts | st.builds(HasWord, st.sampled_from(["a", "É", "7", "[1]", "1.jpg", "%"])))
