"""Parser of filters: conditions on label and metadata, read into a tree.

    shop = 'a.example' AND (price < 20 OR NOT "on sale" = TRUE) AND tags IS NOT NULL

    filter     = all { OR all }
    all        = one { AND one }
    one        = NOT one | "(" filter ")" | column comparison
    comparison = ( = | == | != | <> | < | <= | > | >= ) value | [NOT] IN "(" value { "," value } ")"
               | [NOT] LIKE text | [NOT] BETWEEN value AND value | IS [NOT] NULL
    column     = name { "." name }            id, label, tag, path and source are the catalogue's, others metadata
    name       = word | "any characters"      metadata.label is the metadata that has the name label
    value      = number | date | 'text' | "text" | TRUE | FALSE        a date, as 2024-05 or 2024-05-31, is a text

Keywords ignore case, names do not. Within quotes the quote is written twice.

- Missing metadata and null match no comparison, also not !=, NOT IN or one under NOT; only IS NULL finds them.
- A number compares with stored numbers, and with stored texts that are numbers. Other texts differ from every number,
  and match neither < nor > nor its NOT.
- A text compares character by character with stored texts, which is right for ISO dates. A text that is a number
  compares as one with stored numbers.
- Stored true and false are 1 and 0; TRUE and FALSE equal them, and the texts true and false of any case.
- An image has any number of tags: a comparison with `tag` is true where one of them fulfils it, and `tag != 'x'` where
  no tag is x, also of an image without tags.
- LIKE takes % for any characters and _ for one, of numbers too, and ignores case. Lists are their JSON text.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

from index.errors import InputError
from index.filters import condition as tree
from index.filters.condition import Condition, HasWord, join
from index.text import printable_path, valid_text

MAX_WORDS_CHARACTERS = 500
MAX_WORDS = 16
MAX_WORD_CHARACTERS = 100

RESERVED = frozenset(("AND", "OR", "NOT", "IN", "LIKE", "BETWEEN", "IS", "NULL", "TRUE", "FALSE"))
_WORD = r"[^\W\d][\w-]*"
_TOKEN = re.compile(
    rf"""(?P<space>\s+)
    |(?P<date>[0-9]{{4}}-[0-9]{{2}}(?:-[0-9]{{2}})?(?![\w.+-]))
    |(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?![\w.+-]))
    |(?P<word>{_WORD})
    |(?P<single>'(?:[^']|'')*')
    |(?P<double>"(?:[^"]|"")*")
    |(?P<sign><=|>=|<>|!=|==|[=<>(),.])""",
    re.VERBOSE,
)
_SHOWN_CHARACTERS = 30
MAX_CHARACTERS = 10_000
MAX_NESTING = 20  # SQLite's own parser has room for some more
MAX_CONDITIONS = 200  # and so has its evaluation
MAX_NAMES = 10
MAX_PATTERN_CHARACTERS = 100
_SIGNS = {"==": "=", "<>": "!=", "=": "=", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_COMPARISON = "a comparison: =, !=, <, <=, >, >=, IN, LIKE, BETWEEN or IS NULL"
_VALUE = "a number, a date, 'text', TRUE or FALSE"


def parse_filter(text: str) -> tree.Condition:
    if not text or text.isspace():
        raise InputError("the filter is empty; write a comparison such as: price < 20")
    if len(text) > MAX_CHARACTERS:
        raise InputError(f"the filter has {len(text):,} characters; at most {MAX_CHARACTERS:,} are allowed")
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise place_error(text, error.start, "half of a surrogate pair, which is not valid text") from error
    if "\0" in text:
        raise place_error(text, text.index("\0"), "a NUL character")
    parser = _Parser(text, list(read_tokens(text)))
    condition = parser.read_any()
    if parser.token.kind != "end":
        raise parser.unexpected("AND, OR or the end")
    return condition


def parse_order(text: str) -> tree.Order:
    """The order that a column names, descending with a minus before it.

    >>> parse_order("-taken")
    (Column(names=('taken',), is_own=False), '-')
    """
    column = parse_column(text.removeprefix("-"))
    if column == tree.TAG:
        raise InputError(f"{printable_path(text)}: expected a column to sort by, such as taken or -taken, but no tag")
    return column, "-" if text.startswith("-") else ""


def parse_column(text: str) -> tree.Column:
    """Parse the name of a column; what is no name in a filter is the name of metadata, as with double quotes."""
    try:
        condition = parse_filter(f"{text} IS NULL")
    except InputError:
        condition = None
    if not isinstance(condition, tree.IsNull):
        quoted = text.replace('"', '""')
        condition = parse_filter(f'"{quoted}" IS NULL')
    assert isinstance(condition, tree.IsNull)
    return condition.column


@dataclass(slots=True)
class _Parser:
    text: str
    tokens: "list[Token]"
    at: int = 0
    nesting: int = 0
    conditions: int = 0

    @property
    def token(self) -> "Token":
        return self.tokens[self.at]

    def read_any(self) -> tree.Condition:
        return self._read_joined("OR", tree.Or, lambda: self._read_joined("AND", tree.And, self._read_one))

    def _read_joined(
        self, word: str, kind: type[tree.And] | type[tree.Or], read: Callable[[], tree.Condition]
    ) -> tree.Condition:
        parts = [read()]
        while self._take(word):
            parts.append(read())
        return tree.join(parts, kind)

    def _read_one(self) -> tree.Condition:
        start = self.token
        if not (word := self._take("NOT", "(")):
            return self._read_condition()
        self.nesting += 1
        if self.nesting > MAX_NESTING:
            raise place_error(self.text, start.start, f"at most {MAX_NESTING} ( and NOT may lie in each other")
        if word == "NOT":
            condition: tree.Condition = tree.Not(self._read_one())
        else:
            condition = self.read_any()
            self._expect(")", wanted="AND, OR or )")
        self.nesting -= 1
        return condition

    def _read_condition(self) -> tree.Condition:
        self.conditions += 1
        if self.conditions > MAX_CONDITIONS:
            problem = f"at most {MAX_CONDITIONS} comparisons are allowed; IN compares with many values"
            raise place_error(self.text, self.token.start, problem)
        start = self.token
        column = self._read_column()
        sign = self.token
        if sign.kind == "sign" and sign.text in _SIGNS:
            self.at += 1
            constant = self._read_value(column, start, ordered=_SIGNS[sign.text] not in ("=", "!="))
            return tree.Compare(column, cast(tree.Sign, _SIGNS[sign.text]), constant)
        if self._take("IS"):
            is_negated = bool(self._take("NOT"))
            self._expect("NULL", wanted="NULL" if is_negated else "NULL or NOT NULL")
            return tree.Not(tree.IsNull(column)) if is_negated else tree.IsNull(column)
        is_negated = bool(self._take("NOT"))
        condition = self._read_set(column, start, wanted="IN, LIKE or BETWEEN" if is_negated else _COMPARISON)
        return tree.Not(condition) if is_negated else condition

    def _read_set(self, column: tree.Column, start: "Token", *, wanted: str) -> tree.Condition:
        if self._take("IN"):
            self._expect("(", wanted="(, as in IN (1, 2)")
            constants = [self._read_value(column, start)]
            while self._take(","):
                constants.append(self._read_value(column, start))
            self._expect(")", wanted=", or )")
            return tree.Among(column, tuple(constants))
        if self._take("LIKE"):
            pattern = self.token
            if pattern.kind not in ("single", "double"):
                raise self.unexpected("a text in quotes, in which % is any characters and _ is one")
            if len(pattern.content) > MAX_PATTERN_CHARACTERS:
                problem = f"the text after LIKE has more than {MAX_PATTERN_CHARACTERS:,} characters"
                raise place_error(self.text, pattern.start, problem)
            self.at += 1
            return tree.Like(column, pattern.content)
        if self._take("BETWEEN"):
            least = self._read_value(column, start, ordered=True)
            self._expect("AND", wanted="AND and the greater value")
            most = self._read_value(column, start, ordered=True)
            return tree.And((tree.Compare(column, ">=", least), tree.Compare(column, "<=", most)))
        raise self.unexpected(wanted)

    def _read_column(self) -> tree.Column:
        start, names = self.token, [self._read_name()]
        while self._take("."):
            names.append(self._read_name())
        if len(names) > MAX_NAMES:
            raise place_error(self.text, start.start, f"a column has at most {MAX_NAMES} names")
        if len(names) == 1 and names[0] in tree.OWN_COLUMNS:
            return tree.OWN_COLUMNS[names[0]]
        if len(names) > 1 and start.text == "metadata":
            del names[0]
        return tree.Column(tuple(names))

    def _read_name(self) -> str:
        token = self.token
        if token.kind not in ("word", "double") or token.reserved:
            advice = ""
            if token.kind in ("single", "number", "date"):
                advice = "; a comparison begins with a column, whose name is bare or in double quotes"
            elif token.reserved in RESERVED:
                advice = f'; as a name it goes in double quotes: "{token.text}"'
            raise self.unexpected("the name of a column", advice)
        self.at += 1
        return valid_text(token.content)

    def _read_value(self, column: tree.Column, start: "Token", *, ordered: bool = False) -> tree.Constant:
        """A value to compare with a column, whose first token is `start`."""
        token = self.token
        truth = {"TRUE": "1", "FALSE": "0"}.get(token.reserved)
        if truth is None and token.kind not in ("number", "date", "single", "double"):
            advice = "; say IS NULL or IS NOT NULL" if token.reserved == "NULL" else ""
            if token.kind == "word" and not token.reserved:
                shown = printable_path(token.text)
                advice = f"; text goes in quotes: '{shown}'; columns cannot be compared with each other"
            raise self.unexpected(_VALUE, advice)
        if truth is not None and ordered:
            raise place_error(self.text, token.start, f"{token.text} is neither above nor below anything; write =")
        if column.holds == "bytes" and token.kind not in ("single", "double"):
            problem = f"the {start.content} is a text; write '{token.text}'"
            raise place_error(self.text, token.start, problem)
        self.at += 1
        if truth is not None:
            return tree.Constant("truth", truth)
        return tree.Constant("number" if token.kind == "number" else "text", token.content)

    def _take(self, *words: str) -> str:
        """Consume the next token if it is one of these, and return it; else an empty text."""
        found = self.token.reserved
        if found not in words:
            return ""
        self.at += 1
        return found

    def _expect(self, word: str, *, wanted: str) -> None:
        if not self._take(word):
            raise self.unexpected(wanted)

    def unexpected(self, wanted: str, advice: str = "") -> InputError:
        found = printable_path(self.token.text) or "nothing more"
        return place_error(self.text, self.token.start, f"expected {wanted}; found {found}{advice}")


def find_words(text: str, *, folders: bool = True) -> Condition:
    """The filter for images with every word in path, label, source or a metadata value; see `HasWord`.

    Words are separated by spaces, match parts of words literally, and ignore case and the Unicode form of accents. A
    word takes 0.1 s among 200,000 images, and 0.5 s where each has metadata of 130 characters (one core).
    """
    words = list(dict.fromkeys(text.split()))
    if not words:
        raise InputError("the text is empty; write a word that is in a path, label or other text of the images")
    if len(text) > MAX_WORDS_CHARACTERS or len(words) > MAX_WORDS:
        seen = f"{len(words):,} words in {len(text):,} characters"
        raise InputError(f"the text has {seen}; at most {MAX_WORDS} words in {MAX_WORDS_CHARACTERS} are looked for")
    if max(map(len, words)) > MAX_WORD_CHARACTERS:
        raise InputError(f"a word of the text has more than {MAX_WORD_CHARACTERS} characters")
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise InputError("the text holds half of a surrogate pair, which is not valid text; leave it out") from error
    if "\0" in text:
        raise InputError("the text holds a NUL character; leave it out")
    return join([HasWord(word, folders) for word in words])


def write_condition(condition: tree.Condition) -> str:
    """The text of a condition without `HasWord`, which has no text.

    >>> write_condition(tree.Not(tree.Like(tree.Column(("on sale",)), "it's %")))
    'NOT "on sale" LIKE \\'it\\'\\'s %\\''
    """
    match condition:
        case tree.Compare(column, sign, constant):
            return f"{write_column(column)} {sign} {_write_constant(constant)}"
        case tree.Among(column, constants):
            return f"{write_column(column)} IN ({', '.join(map(_write_constant, constants))})"
        case tree.Like(column, pattern):
            return f"{write_column(column)} LIKE {_quote(pattern)}"
        case tree.IsNull(column):
            return f"{write_column(column)} IS NULL"
        case tree.Not(part):
            return f"NOT {_write_part(part)}"
        case tree.And(parts):
            return " AND ".join(map(_write_part, parts))
        case tree.Or(parts):
            return " OR ".join(map(_write_part, parts))
        case tree.HasWord(word):
            raise ValueError(f"no text of a filter looks for the word {word!r} everywhere")


def write_column(column: tree.Column) -> str:
    own = len(column.names) == 1 and column.names[0] in tree.OWN_COLUMNS
    is_ambiguous = own if len(column.names) == 1 else column.names[0] == "metadata"
    names = ("metadata", *column.names) if is_ambiguous and not column.is_own else column.names
    return ".".join(
        name if re.fullmatch(_WORD, name) and name.upper() not in RESERVED else '"' + name.replace('"', '""') + '"'
        for name in names
    )


def _write_part(part: tree.Condition) -> str:
    return f"({write_condition(part)})" if isinstance(part, tree.And | tree.Or) else write_condition(part)


def _write_constant(constant: tree.Constant) -> str:
    if constant.kind == "truth":
        return "TRUE" if constant.text == "1" else "FALSE"
    return constant.text if constant.kind == "number" else _quote(constant.text)


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@dataclass(frozen=True, slots=True)
class Token:
    """A token, of the kind "number", "date", "word", "single" or "double" (by its quotes), "sign", or "end"."""

    kind: str
    text: str
    start: int

    @property
    def reserved(self) -> str:
        """A keyword, in capitals, or a sign; empty for other tokens."""
        if self.kind == "sign":
            return self.text
        return self.text.upper() if self.kind == "word" and self.text.upper() in RESERVED else ""

    @property
    def content(self) -> str:
        quote = self.text[:1]
        return self.text[1:-1].replace(quote * 2, quote) if self.kind in ("single", "double") else self.text


def read_tokens(text: str) -> Iterator[Token]:
    """Every token, and an "end" after the last."""
    start = 0
    while start < len(text):
        match = _TOKEN.match(text, start)
        if match is None:
            problem = "expected a name, a comparison like < or IN, or a value; text goes in quotes: 'text'"
            if text[start] in "'\"":
                problem = f"the quote is never closed; within a text write {text[start] * 2}"
            elif text[start].isdigit() or text[start] in "+-":
                problem = (
                    "expected a number like 20 or -1.5e3; a date like 2024-05-31; other text goes in quotes: 'text'"
                )
            raise place_error(text, start, problem)
        if match.lastgroup != "space":
            yield Token(str(match.lastgroup), match[0], start)
        start = match.end()
    yield Token("end", "", len(text))


def place_error(text: str, start: int, problem: str) -> InputError:
    rest = text[start:]
    shown = rest if len(rest) <= _SHOWN_CHARACTERS else rest[:_SHOWN_CHARACTERS] + "…"
    place = f"at character {start + 1}, {printable_path(shown)}" if shown else "at its end"
    return InputError(f"the filter cannot be read {place}: {problem}")
