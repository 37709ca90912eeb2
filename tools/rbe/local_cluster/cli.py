"""The command line: up, status, logs, kill-worker, restart, down."""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Sequence

from debian_prefix.errors import InstallError

from local_cluster import control, health, packages
from local_cluster.cluster import end_cluster, find_cluster, start_cluster
from local_cluster.errors import ClusterError
from local_cluster.places import DEFAULT_NAME, ClusterFiles, cluster_files
from local_cluster.plan import FORM, parse_pools
from local_cluster.status import status_lines

# BuildGrid's own port, and the port of --config=rbe_local.
DEFAULT_PORT = 50051
_DEFAULT_POOLS = ("cpu=2",)

_DESCRIPTION = """\
A real remote-execution cluster on this machine: BuildGrid on PostgreSQL, and BuildBox workers in named pools.
It listens on the loopback address only, and GPUs of its workers are simulated.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit status: 0 if it succeeded, 1 with the reason if not, 2 if the arguments are wrong.
    """
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except InstallError as error:
        _say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        _say("interrupted")
        return 130


def _run(options: argparse.Namespace) -> int:
    if platform.system() != "Linux":
        raise ClusterError(
            f"a cluster cannot be started on {platform.system()}.",
            "Its programs, and the way they are watched, need Linux.",
            "Use a Linux machine, and reach its endpoint from here through a tunnel.",
        )
    files = cluster_files(options.name)
    if options.command == "up":
        return _up(options, files)
    if options.command == "down":
        end_cluster(files, options.name, _say)
        _say(f"the cluster '{options.name}' has ended; nothing of it is left")
        return 0
    scratch = find_cluster(files, options.name)
    if options.command == "status":
        status = control.ask(scratch, {"do": "status"})
        text = json.dumps(status, indent=2) if options.json else "\n".join(status_lines(status, time.time()))
        sys.stdout.write(text + "\n")
        return 0
    if options.command == "logs":
        return _logs(options, files)
    control.ask(scratch, {"do": "kill" if options.command == "kill-worker" else "restart", "name": options.part})
    _say(f"{options.part} was {'killed' if options.command == 'kill-worker' else 'restarted'}")
    return 0


def _up(options: argparse.Namespace, files: ClusterFiles) -> int:
    workers = parse_pools(options.pool or _DEFAULT_POOLS)
    started = time.monotonic()
    endpoint = start_cluster(
        files,
        name=options.name,
        port=options.port,
        workers=workers,
        find_programs=lambda: (packages.find_buildbox(), packages.find_postgres()),
        tell=_say,
    )
    _say(f"ready after {time.monotonic() - started:.1f} s; the endpoint is")
    sys.stdout.write(f"{endpoint}\n")
    return 0


def _logs(options: argparse.Namespace, files: ClusterFiles) -> int:
    logs = {log.stem: log for log in sorted(files.logs.glob("*.log"))}
    wanted = options.part or list(logs)
    if unknown := [name for name in wanted if name not in logs]:
        raise ClusterError(
            f"there is no log of {', '.join(unknown)}.",
            f"Parts of this cluster: {', '.join(logs)}.",
            "Name one of those, or none for all.",
        )
    for name in wanted:
        sys.stdout.write(f"== {logs[name]}{health.tail(logs[name], options.lines)}\n")
    return 0


def _say(text: str) -> None:
    sys.stderr.write(f"rbe: {text}\n")
    sys.stderr.flush()


def _port(text: str) -> int:
    if not text.isdigit() or not 0 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"'{text}' is not a port: a number from 0 (any free port) to 65535")
    return int(text)


def _count(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 100_000:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of lines")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rbe", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    common = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    common.add_argument("--name", default=DEFAULT_NAME, help="which cluster, if there are several (default: local)")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=text, description=text, parents=[common], allow_abbrev=False)

    up = command("up", "start a cluster and print its endpoint")
    up.add_argument(
        "--pool",
        action="append",
        metavar=FORM,
        help="workers of one kind; repeat it for each kind (default: cpu=2). Keys: jobs=N (actions at once; 1), "
        "gpus=N (announced and simulated), present=N (really simulated; fewer than gpus for a broken promise). "
        "Any other key is a property that the workers announce. They also announce Pool=NAME unless it is given.",
    )
    up.add_argument("--port", type=_port, default=DEFAULT_PORT, help=f"default: {DEFAULT_PORT}; 0: any free port")
    status = command("status", "print the running parts, the ended parts with the reason, and why jobs wait")
    status.add_argument("--json", action="store_true", help="for programs")
    logs = command("logs", "print the end of every log, or of those named")
    logs.add_argument("part", nargs="*", metavar="PART", help="database, server, a worker, or its storage")
    logs.add_argument("--lines", type=_count, default=40, help="lines of each (default: 40)")
    kill = command("kill-worker", "end a worker and its actions at once, as a power cut would")
    kill.add_argument("part", metavar="WORKER", help="such as cpu-1")
    restart = command("restart", "restart the server, or a worker that runs or was killed")
    restart.add_argument("part", metavar="PART", help="server, or a worker such as cpu-1")
    command("down", "end the cluster, and remove everything that it has written")
    return parser
