"""The cluster's PostgreSQL: its files, its health, and its table of queued and running jobs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psycopg2

from local_cluster.errors import ClusterError
from local_cluster.parts import NOBODY, as_database_user, has_user_namespaces
from local_cluster.places import Scratch

_USER = "bgd"
# Limit for a query: a hanging database must not make the supervisor hang. Seconds.
_LIMIT_S = 5

# Stages of a job: numbers of the Remote Execution API.
_QUEUED = 2
_EXECUTING = 3
# Status of a healthy worker: a number of the Remote Workers API.
_HEALTHY = 1

# Number of jobs that are shown; a client may queue thousands.
MAX_JOBS_SHOWN = 50

_JOBS = """
SELECT jobs.name, jobs.stage, jobs.command, jobs.worker_name,
       EXTRACT(EPOCH FROM (now() AT TIME ZONE 'UTC') - jobs.queued_timestamp),
       array_agg(ARRAY[property.key, property.value]) FILTER (WHERE property.key IS NOT NULL),
       jobs.n_tries
FROM jobs
LEFT JOIN job_platforms AS link ON link.job_name = jobs.name
LEFT JOIN platform_properties AS property ON property.id = link.platform_id
WHERE jobs.stage IN (%(queued)s, %(executing)s) AND NOT jobs.cancelled
GROUP BY jobs.name ORDER BY jobs.queued_timestamp LIMIT %(limit)s
"""


def database_address(scratch: Scratch) -> str:
    """Return SQLAlchemy's address of the database. It names the driver, because not every driver has notifications."""
    return f"postgresql+psycopg2://{_USER}@/postgres?host={scratch.database}"


def create_database(programs: Path, scratch: Scratch, log: Path) -> None:
    """Create an empty database.

    Raises:
        ClusterError: If PostgreSQL refuses.
    """
    scratch.database.mkdir(mode=0o700)
    if os.geteuid() == 0 and not has_user_namespaces():
        os.chown(scratch.database, NOBODY, NOBODY)
    # Every user that may enter the directory may use the database.
    options = ["--username", _USER, "--auth=trust", "--no-sync", "--locale=C", "--encoding=UTF8"]
    command = [*as_database_user(), str(programs / "initdb"), "-D", str(scratch.database), *options]
    environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "GMT"}
    try:
        done = subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True, check=False)
    except OSError as error:
        raise _refused(f"{command[0]}: {error.strerror}", programs) from error
    log.write_text(done.stdout + done.stderr, encoding="utf-8")
    if done.returncode:
        said = " ".join(done.stderr.split())[-400:]
        raise _refused(f"initdb ended with status {done.returncode}: {said}", programs)


def is_database_ready(scratch: Scratch) -> bool:
    """Return whether it answers."""
    try:
        _ask(scratch, "SELECT 1")
    except psycopg2.Error:
        return False
    return True


def worker_sessions(scratch: Scratch) -> dict[str, str]:
    """Return the sessions of healthy workers: the server's name of the session -> the worker's name.

    A killed worker keeps its session until the server notices. After a restart it has a second session.

    Raises:
        ClusterError: If the database does not answer.
    """
    rows = _ask_or_explain(scratch, "SELECT name, bot_id FROM bots WHERE bot_status = %(healthy)s", healthy=_HEALTHY)
    return dict(rows)


def open_jobs(scratch: Scratch) -> list[dict[str, Any]]:
    """Return the jobs that are queued or run, the oldest first, as `status` shows them.

    `name` is the server's, `command` is shortened by the server, `worker` is "" for a queued one, `age_s` is the time
    since it was queued, `wanted` has the properties that its worker must have, `tries` is the number of workers that
    have received it.

    Raises:
        ClusterError: If the database does not answer.
    """
    rows = _ask_or_explain(scratch, _JOBS, queued=_QUEUED, executing=_EXECUTING, limit=MAX_JOBS_SHOWN)
    return [
        {
            "name": name,
            "is_running": stage == _EXECUTING,
            "command": " ".join(str(command).split())[:120],
            "worker": worker or "",
            "age_s": float(age_s),
            "wanted": dict(sorted(wanted or ())),
            "tries": tries,
        }
        for name, stage, command, worker, age_s, wanted, tries in rows
    ]


def remove_shared_memory(scratch: Scratch) -> None:
    """Remove the segment that a killed PostgreSQL leaves in the kernel; PostgreSQL's files have its number."""
    with suppress(OSError):
        lines = (scratch.database / "postmaster.pid").read_text(encoding="utf-8").splitlines()
        # The seventh line: "key number".
        words = lines[6].split() if len(lines) > 6 else []
        ipcrm = shutil.which("ipcrm")
        if len(words) == 2 and words[1].isdigit() and ipcrm is not None:
            # It may already be removed.
            subprocess.run([ipcrm, "-m", words[1]], capture_output=True, check=False)


def _ask(scratch: Scratch, question: str, **values: object) -> Sequence[Any]:
    options = f"-c statement_timeout={_LIMIT_S * 1000}"
    with (
        closing(
            psycopg2.connect(
                host=str(scratch.database), user=_USER, dbname="postgres", connect_timeout=_LIMIT_S, options=options
            )
        ) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(question, values)
        return list(cursor.fetchall())


def _ask_or_explain(scratch: Scratch, question: str, **values: object) -> Sequence[Any]:
    try:
        return _ask(scratch, question, **values)
    except psycopg2.Error as error:
        said = " ".join(str(error).split())
        raise ClusterError(
            f"the database does not answer: {said}.",
            "It has ended, or it is overloaded.",
            "`logs database` shows its messages; `down` and `up` make a new one.",
        ) from error


def _refused(what: str, programs: Path) -> ClusterError:
    return ClusterError(
        f"no database could be created with '{programs}': {what}.",
        "PostgreSQL is broken or too old, or /etc/passwd does not have this user.",
        "Remedy what the message names; `initdb` must work by hand.",
    )
