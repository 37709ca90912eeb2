"""The cluster of `remote_check.py`, and its clients."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.nested_bazel import Done, NestedBazel
from tools.ci.build_events import Attempt, read_invocation

# Output that an error shows. Characters.
_SHOWN = 6000


class ComplaintError(Exception):
    """A check has failed."""


def expect(what: str, expected: object, found: object, output: str = "") -> None:
    """Compare."""
    if expected != found:
        sys.stderr.write(output[-_SHOWN:])
        raise ComplaintError(f"{what}: expected {expected!r}, found {found!r}")


@dataclass(frozen=True, slots=True)
class Tested:
    """A `bazel test` that has ended."""

    done: Done  # its status and output
    attempts: Sequence[Attempt]  # its test actions
    events: Path  # the file of its build events

    @property
    def results(self) -> Mapping[str, Sequence[tuple[str, str]]]:
        """Return target -> the results of its shards: the status, and "ran" or the name of the cache."""
        results = defaultdict(list)
        for attempt in self.attempts:
            results[attempt.target].append((attempt.status, attempt.cached or "ran"))
        return results


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster."""

    name: str  # its name in the commands of `//tools/rbe`
    program: Path  # `//tools/rbe`, built
    endpoint: str = ""  # the endpoint for Bazel

    def call(self, command: str, *arguments: str) -> str:
        """Run one of its commands, and return the output.

        Raises:
            ComplaintError: If it fails.
        """
        done = subprocess.run(
            [str(self.program), command, "--name", self.name, *arguments], capture_output=True, text=True, check=False
        )
        expect(f"rbe {command} {' '.join(arguments)}", 0, done.returncode, done.stderr)
        return done.stdout


@dataclass(slots=True)
class Client:
    """A user of the cluster, with a Bazel server of its own."""

    bazel: NestedBazel
    scratch: Path
    count: int = field(default=0)

    def test(self, *arguments: str) -> Tested:
        """Run `bazel test --config=rbe_local` to its end."""
        self.count += 1
        events = self.scratch / f"events-{self.bazel.output_root.name}-{self.count}.json"
        done = self.bazel.run("test", "--config=rbe_local", f"--build_event_json_file={events}", *arguments)
        return Tested(done, read_invocation(events).attempts, events)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start `bazel test --config=rbe_local`."""
        command = [self.bazel.bazel, f"--output_user_root={self.bazel.output_root}", "test", "--config=rbe_local"]
        return subprocess.Popen(
            [*command, "--color=no", "--curses=no", "--lockfile_mode=off", *arguments],
            cwd=self.bazel.workspace,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@contextmanager
def running_cluster(program: Path, pools: Sequence[str], *options: str, suffix: str = "") -> Iterator[Cluster]:
    """Start a cluster by `//tools/rbe`, built. It ends with the block and leaves nothing."""
    cluster = Cluster(f"check-{os.getpid()}{suffix}", program)
    arguments = [argument for pool in pools for argument in ("--pool", pool)]
    places: tuple[Path, ...] = ()
    try:
        running = Cluster(cluster.name, program, cluster.call("up", "--port", "0", *arguments, *options).strip())
        status = json.loads(running.call("status", "--json"))
        places = (Path(status["scratch"]), Path(status["logs"]).parent)
        yield running
        # The files go away with the cluster, as is checked below, and lie nowhere else.
        expect("temporary files of the workers", True, any(places[0].glob("tmp/buildbox*")))
    finally:
        cluster.call("down")
    left = [str(place) for place in places if place.exists()]
    left += [
        str(link)
        for link in Path("/tmp").glob("dist-*/*")
        if link.is_symlink() and places[1] in link.readlink().parents
    ]
    expect("what the cluster has left", [], left)
