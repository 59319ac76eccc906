"""Names of folders and files that every file system takes, for labels, splits and images of any name."""

import hashlib
import re
import unicodedata

_MAX_BYTES = 80
_UNSAFE = re.compile(r"[^\w .()+,=@&'!-]")
_UNSAFE_SPLIT = re.compile(r"\W")  # Hugging Face takes nothing else in the name of a split


# Names that Windows takes for devices, whatever their suffix; it takes superscripts for digits.
_DEVICES = {"con", "prn", "aux", "nul", *(f"{kind}{port}" for kind in ("com", "lpt") for port in "0123456789¹²³")}


class SafeNames:
    """A name for each of several texts: the text itself where it is safe and free, else a similar one with a hash.

    Names differ also where a file system ignores case and accents' encodings. Readers of data sets skip hidden names.
    """

    def __init__(self, *taken: str, splits: bool = False) -> None:
        self._taken = {_fold(name) for name in taken}
        self._unsafe = _UNSAFE_SPLIT if splits else _UNSAFE

    def take(self, text: str, *, suffix: str = "", key: str = "") -> str:
        """A name that nothing else has; `key` tells equal texts apart."""
        stem = make_safe(text, self._unsafe)
        name, number = f"{stem}{suffix}", 0
        if stem != text or _fold(name) in self._taken:
            digest = hashlib.sha256(f"{text}\0{key}".encode("utf-8", "surrogatepass")).hexdigest()[:8]
            name = f"{stem}_{digest}{suffix}"
            while _fold(name) in self._taken:
                number += 1
                name = f"{stem}_{digest}_{number}{suffix}"
        self._taken.add(_fold(name))
        return name


def make_safe(text: str, unsafe: re.Pattern[str] = _UNSAFE) -> str:
    """A text as a name, cut to 80 bytes, without separators, control characters and reserved names."""
    kept = unsafe.sub("_", unicodedata.normalize("NFC", text))
    cut = kept.encode("utf-8", "ignore")[:_MAX_BYTES].decode("utf-8", "ignore").strip(" .")
    cut = cut.lstrip("._ ") or "unnamed"
    stem, dot, rest = cut.partition(".")
    return f"{stem}_{dot}{rest}" if stem.strip().casefold() in _DEVICES else cut


def _fold(name: str) -> str:
    return unicodedata.normalize("NFKC", name).casefold()
