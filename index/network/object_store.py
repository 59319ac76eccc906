"""Buckets of S3 (and compatible servers), Google Cloud Storage and Azure Blob Storage, through obstore.

Credentials and endpoints come from the standard environment variables (AWS_ACCESS_KEY_ID, AWS_REGION, AWS_ENDPOINT_URL,
AWS_SKIP_SIGNATURE, GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_NAME ...), for S3 from ~/.aws too.
"""

import configparser
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any

from index.errors import InputError, missing_imports_as_dependency_errors
from index.items import FoundItem
from index.network.remote_store import TRIES, Content, FetchError, make_stamp
from index.text import printable_path

with missing_imports_as_dependency_errors("reading from buckets"):
    import obstore
    import obstore.exceptions
    import obstore.store

SCHEMES = ("s3", "s3a", "gs", "gcs", "az", "azure", "abfs", "abfss", "adl")
_PART_BYTES = 1 << 20
_CLIENT = {
    "connect_timeout": timedelta(seconds=10),
    "read_timeout": timedelta(seconds=20),
    "timeout": timedelta(hours=2),  # of a whole shard
}
_RETRIES = {"max_retries": TRIES - 1, "retry_timeout": timedelta(minutes=3)}  # with back-off and jitter
_FORBIDDEN = ("AccessDenied", "AllAccessDisabled", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken")
_REASONS = {"NoSuchBucket": FetchError.NOT_FOUND, **dict.fromkeys(_FORBIDDEN, FetchError.NO_RIGHTS)}
_CODE = re.compile(r"<Code>(\w+)</Code>")


class BucketStore:
    """A bucket below a prefix, such as `s3://bucket/photos`; see `RemoteStore`. `is_hurried` switches retries off."""

    def __init__(self, address: str, *, is_hurried: bool = False) -> None:
        scheme, _, rest = address.partition("://")
        bucket, _, prefix = rest.partition("/")
        self._prefix = f"{prefix}/" if prefix else ""
        retries = {"max_retries": 0} if is_hurried else _RETRIES
        config = _read_profile() if scheme.startswith("s3") else {}
        client = {**_CLIENT, "allow_http": os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")}
        name = f"{scheme}://{bucket}"
        try:
            self._store = obstore.store.from_url(name, config=config, client_options=client, retry_config=retries)
        except (obstore.exceptions.BaseError, ValueError) as error:
            seen = printable_path(str(error).partition("\n")[0])
            raise InputError(f"not the name of a bucket: {seen}", at=name) from error

    def walk(self) -> Iterator[FoundItem]:
        """Items in the order of the bucket's listing, without the empty objects that mark folders."""
        last: FoundItem | None = None
        with self._naming_errors():
            for found in chain.from_iterable(obstore.list(self._store, prefix=self._prefix or None)):
                path = found["path"].removeprefix(self._prefix)
                if path == found["path"] and self._prefix:
                    continue
                if last is not None and (last.size_bytes or not path.startswith(f"{last.path}/")):
                    yield last
                last = _as_file(path, found)
        if last is not None:
            yield last

    def look(self, path: str) -> FoundItem:
        with self._naming_errors():
            return _as_file(path, obstore.head(self._store, self._prefix + path))

    @contextmanager
    def open(self, path: str, *, offset: int = 0, size_bytes: int | None = None) -> Iterator[Content]:
        part = {"offset": offset} if size_bytes is None else (offset, offset + size_bytes)
        options = {"range": part} if offset or size_bytes else {}
        with self._naming_errors():
            got = obstore.get(self._store, self._prefix + path, options=options)
        yield _as_file(path, got.meta), self._take(got)

    def _take(self, got: Any) -> Iterator[bytes]:
        with self._naming_errors(is_transient=True):
            yield from map(bytes, got.stream(min_chunk_size=_PART_BYTES))

    @contextmanager
    def _naming_errors(self, *, is_transient: bool = False) -> Iterator[None]:
        errors = obstore.exceptions
        try:
            yield
        except FileNotFoundError as error:  # as of which NotFoundError is one
            raise FetchError(FetchError.NOT_FOUND, _shorten(error)) from error
        except (errors.PermissionDeniedError, errors.UnauthenticatedError, PermissionError) as error:
            raise FetchError(FetchError.NO_RIGHTS, _shorten(error)) from error
        except errors.InvalidPathError as error:
            seen = f"a key is not a path ({_shorten(error)}); give a prefix without such keys"
            raise FetchError(FetchError.REFUSED, seen) from error
        except (errors.BaseError, OSError) as error:
            reason = _REASONS.get(_find_code(error), FetchError.UNREACHABLE)
            passes = is_transient and reason == FetchError.UNREACHABLE
            raise FetchError(reason, _shorten(error), is_transient=passes) from error


def _as_file(path: str, found: Any) -> FoundItem:
    return FoundItem(path, int(found["size"]), make_stamp(found["e_tag"], found["last_modified"]))


def _read_profile() -> dict[str, str]:
    """Keys and region of ~/.aws, where no environment variable gives them."""
    if "AWS_ACCESS_KEY_ID" in os.environ or "AWS_SKIP_SIGNATURE" in os.environ:
        return {}
    home, name = Path.home() / ".aws", os.environ.get("AWS_PROFILE", "default")
    read = configparser.ConfigParser(interpolation=None)
    files = (
        (os.environ.get("AWS_CONFIG_FILE"), home / "config"),
        (os.environ.get("AWS_SHARED_CREDENTIALS_FILE"), home / "credentials"),
    )
    try:
        read.read([given or default for given, default in files], encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError) as error:
        raise InputError(f"~/.aws: cannot be read: {printable_path(error)}") from error
    found: dict[str, str] = {}
    for section in (f"profile {name}", name):
        if read.has_section(section):
            found |= dict(read.items(section))
    known = {
        "aws_access_key_id": "access_key_id",
        "aws_secret_access_key": "secret_access_key",
        "aws_session_token": "session_token",
        "region": "region",
    }
    return {ours: found[theirs] for theirs, ours in known.items() if theirs in found}


def _find_code(error: Exception) -> str:
    match = _CODE.search(str(error))
    return match[1] if match else ""


def _shorten(error: Exception) -> str:
    """The code and status of a server's error, or why there was no answer."""
    text = str(error)
    code, status = _find_code(error), re.search(r"status code: (\d+[^:\n]*)", text)
    first = text.partition("\n")[0]
    reason = first.rpartition(" - ")[2]  # behind the address of the server and the times
    if "169.254.169.254" in first or "metadata" in first.lower():
        return (
            "no keys were found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for a "
            "public bucket"
        )
    if code or status:
        return " ".join(filter(None, (code, f"(status {status[1].strip()})" if status else "")))
    return printable_path(re.sub(r"^Generic \w+ error: ", "", reason)[:300])
