"""The pinned Bazel from its release server, or from a mirror with the same layout."""

from __future__ import annotations

import hashlib
import http.client
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from debian_prefix.cache import PARTIAL, require_free_space
from debian_prefix.console import progress, say
from debian_prefix.errors import InstallError, explained_os_errors

from bazel_bootstrap.settings import RELEASE_URL_VARIABLE, Settings

# Limit for the first answer, with the resolution of the name (which has no limit of its own) and
# redirects. Seconds.
ANSWER_LIMIT_S = 6.0
# A download that delivers nothing for this long has broken off. Seconds.
STALL_LIMIT_S = 30.0
CHUNK_BYTES = 1 << 20


class ReleaseUnavailableError(Exception):
    """The release server does not answer or lacks the file; another way may still work."""


class _Response(Protocol):
    """The part of `urllib`'s response that is used."""

    length: int | None

    def read(self, size: int, /) -> bytes: ...

    def close(self) -> None: ...


def pinned_sum(tools: Path, file_name: str) -> str:
    """Return the sha256 that release_sums.txt pins for a file of the release server."""
    sums = tools / "release_sums.txt"
    for line in sums.read_text(encoding="utf-8").splitlines():
        digest, _, name = line.partition("  ")
        if name == file_name:
            return digest
    raise InstallError(
        f"no checksum is pinned for '{file_name}' in '{sums}'.",
        "The version in .bazelversion was changed, and the checksums were not.",
        f"Add the line '<sha256>  {file_name}' there, with the sum that the release page shows.",
    )


def install_release(settings: Settings, file_name: str) -> None:
    """Fetch the release, verify it, and move it to `settings.release`.

    Raises:
        ReleaseUnavailableError: If the server does not answer or has no such file.
        InstallError: If the server answers and then delivers too little or other content.
    """
    expected = pinned_sum(settings.tools, file_name)
    url = f"{settings.release_url}/{settings.version}/{file_name}"
    with _answer(url) as response:
        partial = settings.cache / f"{settings.release.parent.name}{PARTIAL}"
        with explained_os_errors(settings.cache):
            try:
                _download(response, url, expected, partial)
                partial.chmod(0o755)
                settings.release.parent.mkdir(exist_ok=True)
                partial.replace(settings.release)
            finally:
                partial.unlink(missing_ok=True)


def is_reachable(settings: Settings, file_name: str) -> str | None:
    """Return None if the server offers the file now, else the reason."""
    try:
        with _answer(f"{settings.release_url}/{settings.version}/{file_name}"):
            return None
    except ReleaseUnavailableError as error:
        return str(error)


@contextmanager
def _answer(url: str) -> Iterator[_Response]:
    """Open `url` within `ANSWER_LIMIT_S`."""
    future: Future[_Response] = Future()

    def ask() -> None:
        try:
            future.set_result(urllib.request.urlopen(url, timeout=STALL_LIMIT_S))
        except (OSError, http.client.HTTPException, ValueError) as error:
            future.set_exception(error)

    # A daemon: a resolver that hangs cannot keep the process alive.
    threading.Thread(target=ask, daemon=True).start()
    try:
        with progress("asking the release server"):
            response = future.result(ANSWER_LIMIT_S)
    except FutureTimeoutError:
        raise ReleaseUnavailableError(f"no answer within {ANSWER_LIMIT_S:.0f} s") from None
    except urllib.error.HTTPError as error:
        raise ReleaseUnavailableError(f"it answers {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        raise ReleaseUnavailableError(str(error.reason)) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ReleaseUnavailableError(str(error) or type(error).__name__) from error
    try:
        yield response
    finally:
        response.close()


def _download(response: _Response, url: str, expected: str, target: Path) -> None:
    total_bytes = response.length or 0
    require_free_space(target.parent, total_bytes)
    digest = hashlib.sha256()
    received_bytes = 0

    def measure() -> str:
        of_total = f" of {total_bytes / 1e6:.0f}" if total_bytes else ""
        return f"{received_bytes / 1e6:.0f}{of_total} MB"

    with target.open("wb") as stream, progress("fetching Bazel:", measure):
        say(f"fetching Bazel from {url}")
        while chunk := _read(response, url):
            stream.write(chunk)
            digest.update(chunk)
            received_bytes += len(chunk)
    if received_bytes < total_bytes:
        raise _broken_off(url, f"{received_bytes} of {total_bytes} bytes arrived")
    if digest.hexdigest() != expected:
        raise InstallError(
            f"checksum mismatch for {url}: got sha256 {digest.hexdigest()}, expected {expected}.",
            "The file was changed on its way, or a mirror or proxy delivers something else.",
            f"Do not use it. Set {RELEASE_URL_VARIABLE} to a mirror you trust, or put a Bazel on PATH.",
        )


def _read(response: _Response, url: str) -> bytes:
    try:
        return response.read(CHUNK_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise _broken_off(url, str(error) or type(error).__name__) from error


def _broken_off(url: str, observed: str) -> InstallError:
    return InstallError(
        f"the download of {url} broke off: {observed}.",
        "The connection was lost, or a proxy limits the size of downloads.",
        f"Run again. If it stays so, set {RELEASE_URL_VARIABLE} to a mirror, or to nothing to use Debian's Bazel.",
    )
