"""Helpers of bazelw's tests: a copy of the wrapper to run, and a release server on loopback."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

TOOLS = Path(__file__).parent.parent
ROOT = TOOLS.parent.parent
DEBIAN_PREFIX = TOOLS.parent / "debian_prefix"

# Limit for every wait of a test. Only a failing test reaches it. Seconds.
LIMIT_S = 60.0

# Programs that bazelw may expect on every machine.
_BASE_TOOLS = (
    *("bash", "sh", "env", "cat", "dirname", "find", "head", "mkdir", "readlink", "sha256sum"),
    *("sort", "stat", "timeout", "tr", "uname", "xargs"),
)
_RELEASE_NAMES: Mapping[str, str] = {"x86_64": "linux-x86_64", "aarch64": "linux-arm64"}

# A stand-in for a released Bazel. It prints its arguments, and ends with a status of its own.
RELEASED_BAZEL = b"""#!/bin/sh
if [ "$1" = --version ]; then echo "bazel 7.7.1"; exit 0; fi
echo "released bazel in $PWD got:"; printf '<%s>\\n' "$@"
if [ "$1" = read-stdin ]; then cat; fi
if [ "$1" = kill-self ]; then kill -TERM $$; fi
exit 7
"""
RELEASED_STATUS = 7
# Bazel's code for a fault of the machine.
MACHINE_FAULT = 36


@dataclass
class Workspace:
    """A copy of the wrapper and the environment that it runs in."""

    root: Path  # the copy
    bin: Path  # the only directory on PATH
    env: dict[str, str]  # all its environment variables

    @classmethod
    def create(cls, parent: Path) -> Workspace:
        """Make a workspace without any Bazel; a test may provide one."""
        root, home, tools = parent / "workspace", parent / "home", parent / "bin"
        for directory in (root, home, tools):
            directory.mkdir()
        for name in ("bazelw", ".bazelversion"):
            shutil.copy(ROOT / name, root)
        ignored = shutil.ignore_patterns("tests", "__pycache__")
        for folder in (TOOLS, DEBIAN_PREFIX):
            shutil.copytree(folder, root / "tools" / folder.name, ignore=ignored)
        for name in _BASE_TOOLS:
            found = shutil.which(name)
            assert found is not None, f"the test needs '{name}' on PATH"
            (tools / name).symlink_to(found)
        workspace = cls(root, tools, {})
        # A script, because a link to the interpreter of a virtual environment would lose it.
        workspace.add_program("python3", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        unreachable = "http://127.0.0.1:1"
        workspace.env = {"HOME": str(home), "PATH": str(tools), "BAZELW_RELEASE_URL": unreachable}
        return workspace

    @property
    def cache(self) -> Path:
        """The cache of bazelw, by the present environment."""
        user_cache = self.env.get("XDG_CACHE_HOME", f"{self.env['HOME']}/.cache")
        return Path(user_cache) / "dist_testing/bazel"

    @property
    def release(self) -> Path:
        """Where bazelw puts a released Bazel."""
        machine = platform.uname()
        return self.cache / f"release-7.7.1-{machine.system}-{machine.machine}" / "bazel"

    def add_program(self, name: str, script: str) -> Path:
        """Put a script on PATH."""
        file = self.bin / name
        file.write_text(script)
        file.chmod(0o755)
        return file

    def add_bazel(self, version: str, name: str = "bazel") -> Path:
        """Put a Bazel on PATH that calls itself `version` and names itself when run."""
        answer = f'if [ "$1" = --version ]; then echo "bazel {version}"; exit; fi'
        return self.add_program(name, f'#!/bin/sh\n{answer}\necho "{name} {version} got: $*"\n')

    def use_server(self, server: ReleaseServer) -> None:
        """Make bazelw ask this server, and expect the sum of `RELEASED_BAZEL` from it."""
        self.env["BAZELW_RELEASE_URL"] = server.url
        digest = hashlib.sha256(RELEASED_BAZEL).hexdigest()
        names = (f"bazel-7.7.1-{ending}" for ending in _RELEASE_NAMES.values())
        sums = "".join(f"{digest}  {name}\n" for name in names)
        (self.root / "tools/bazel/release_sums.txt").write_text(sums)

    def run(self, *arguments: str, cwd: Path | None = None, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run bazelw to its end."""
        return subprocess.run(
            [self.root / "bazelw", *arguments],
            cwd=cwd or self.root,
            env=self.env,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    def refused(self, command: str, *parts: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run bazelw, which finds no Bazel, prints these parts to standard error, and leaves nothing."""
        result = self.run(command, stdin=stdin)
        assert (result.returncode, result.stdout) == (MACHINE_FAULT, "")
        for part in parts:
            assert part in result.stderr
        assert not self.release.exists()
        assert self.leftovers() in ([], ["path-bazels"])
        return result

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start bazelw in a process group of its own."""
        return subprocess.Popen(
            [self.root / "bazelw", *arguments],
            cwd=self.root,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def leftovers(self) -> list[str]:
        """Return the entries of the cache, without the lock and finished installations."""
        if not self.cache.exists():
            return []
        finished = {"lock", self.release.parent.name}
        return sorted(entry.name for entry in self.cache.iterdir() if entry.name not in finished)


@dataclass
class ReleaseServer:
    """A release server. A test may set these attributes to change its answers."""

    url: str  # its base address
    status: int = 200  # the status it answers with
    body: bytes = RELEASED_BAZEL  # content that it delivers
    length: int | None = len(RELEASED_BAZEL)  # the Content-Length it promises; None promises nothing
    paths: list[str] = field(default_factory=list)  # the paths that were asked for
    asked: threading.Event = field(default_factory=threading.Event)  # set when the first request has arrived
    may_answer: threading.Event = field(default_factory=threading.Event)  # the answer is held back until this is set
    # The second half of the body is held back until this is set.
    may_finish: threading.Event = field(default_factory=threading.Event)

    @classmethod
    @contextmanager
    def started(cls) -> Iterator[ReleaseServer]:
        """Serve on a free port until the block ends. Holds nothing back at first."""

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                release_server.answer(self)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Keep quiet."""

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
            release_server = cls(f"http://127.0.0.1:{httpd.server_port}")
            release_server.may_answer.set()
            release_server.may_finish.set()
            thread = threading.Thread(target=httpd.serve_forever)
            thread.start()
            try:
                yield release_server
            finally:
                release_server.may_answer.set()
                release_server.may_finish.set()
                httpd.shutdown()
                thread.join()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Answer one request."""
        self.paths.append(request.path)
        self.asked.set()
        self.may_answer.wait(LIMIT_S)
        request.send_response(self.status)
        if self.length is not None:
            request.send_header("Content-Length", str(self.length))
        try:
            request.end_headers()
            middle = len(self.body) // 2
            request.wfile.write(self.body[:middle])
            request.wfile.flush()
            self.may_finish.wait(LIMIT_S)
            request.wfile.write(self.body[middle:])
        except (BrokenPipeError, ConnectionResetError):
            """The client was stopped, as some tests want it to be."""


def parent_outside_tmp() -> Path:
    """Return a directory that may be written and does not lie under /tmp, also in Bazel's sandbox."""
    given = Path(os.environ.get("TEST_TMPDIR", "/var/tmp")).resolve()
    return Path("/var/tmp") if given.is_relative_to("/tmp") else given


def wait_for_line(process: subprocess.Popen[str], part: str) -> str:
    """Return the next line on the process's standard error that contains `part`."""
    assert process.stderr is not None
    seen = []
    while line := process.stderr.readline():
        seen.append(line)
        if part in line:
            return line
    raise AssertionError(f"no line with '{part}' in: {seen}")


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for the process to end; return its status and the rest of its output."""
    stdout, stderr = process.communicate(timeout=LIMIT_S)
    return process.returncode, stdout, stderr
