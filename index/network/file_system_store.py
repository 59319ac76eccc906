"""File systems of fsspec: sftp, hdfs, hf, webdav and others."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from typing import Any

from index.errors import InputError, MissingDependencyError
from index.network.remote_store import NO_RIGHTS, NOT_FOUND, UNREACHABLE, Content, FetchError, RemoteFile, make_stamp
from index.text import printable_path

_PART_BYTES = 1 << 20
# Refused, because they read local files, or others through a description: a foreign gallery may name any.
_WRAPPERS = frozenset({
    "async_wrapper", "asyncwrapper", "asynclocal", "blockcache", "cached", "dask", "data", "dir", "file", "filecache",
    "generic", "git", "libarchive", "local", "pyscript", "reference", "simplecache", "tar", "zip",
})  # fmt: skip
_TAGS = "ETag", "etag", "e_tag", "md5Hash", "checksum", "sha256"
_TIMES = "LastModified", "last_modified", "mtime", "updated", "modified", "created"


class FileSystemStore:
    """A file system of fsspec below an address; see `RemoteStore`."""

    def __init__(self, address: str) -> None:
        self._files, root = _open_file_system(address)
        self._root = root.rstrip("/")

    def walk(self) -> Iterator[RemoteFile]:
        with _naming_errors():
            found = self._files.find(self._root, detail=True)
        for path, told in sorted(found.items()):
            yield _as_file(path.removeprefix(self._root).lstrip("/"), told)

    def look(self, path: str) -> RemoteFile:
        with _naming_errors():
            return _as_file(path, self._files.info(f"{self._root}/{path}"))

    @contextmanager
    def open(self, path: str, *, offset: int = 0, size_bytes: int | None = None) -> Iterator[Content]:
        found = self.look(path)
        with ExitStack() as closing:
            with _naming_errors():
                file = closing.enter_context(self._files.open(f"{self._root}/{path}", "rb"))
                file.seek(offset)
            yield found, _read_parts(file, size_bytes)


def _read_parts(file: Any, size_bytes: int | None) -> Iterator[bytes]:
    left = size_bytes
    while left is None or left > 0:
        with _naming_errors():
            part = file.read(_PART_BYTES if left is None else min(left, _PART_BYTES))
        if not part:
            return
        left = None if left is None else left - len(part)
        yield bytes(part)


def _open_file_system(address: str) -> tuple[Any, str]:
    """The file system of an address, and the path in it."""
    shown, scheme = printable_path(address), address.partition("://")[0]
    if scheme in _WRAPPERS or "::" in address:
        raise InputError(f"{shown}: expected an address of another machine; this kind is not read")
    try:
        import fsspec
    except ImportError as error:
        purpose = f"reading {printable_path(scheme)}:// addresses"
        raise MissingDependencyError(package="fsspec", extra="remote", purpose=purpose) from error
    try:
        files, root = fsspec.core.url_to_fs(address)
    except ImportError as error:
        raise InputError(f"{shown}: {error}") from error
    except ValueError as error:
        raise InputError(f"{shown}: unknown kind of address: {error}") from error
    except OSError as error:
        raise InputError(f"{shown}: it cannot be reached: {error}") from error
    return files, str(root)


@contextmanager
def _naming_errors() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise FetchError(NOT_FOUND, "no such file") from error
    except PermissionError as error:
        raise FetchError(NO_RIGHTS, str(error)) from error
    except (OSError, EOFError) as error:
        raise FetchError(UNREACHABLE, str(error) or type(error).__name__, is_transient=True) from error


def _as_file(path: str, told: dict[str, Any]) -> RemoteFile:
    tag = next((str(told[name]) for name in _TAGS if told.get(name)), None)
    when = next((told[name] for name in _TIMES if told.get(name)), None)
    size = told.get("size")
    return RemoteFile(path, None if size is None else int(size), make_stamp(tag, _as_time(when)))


def _as_time(when: Any) -> datetime | None:
    """A time that a file system gives: a datetime, seconds since 1970, or a text."""
    if isinstance(when, datetime):
        return when if when.tzinfo else when.replace(tzinfo=UTC)
    try:
        if isinstance(when, int | float):
            return datetime.fromtimestamp(when, UTC)
        return None if when is None else datetime.fromisoformat(str(when))
    except (ValueError, OverflowError, OSError):
        return None
