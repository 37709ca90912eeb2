"""Slurm, Open MPI and MPICH on two simulated nodes: real programs, from the private copy of //tools/nodes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from dist_testing.nodes.namespaces import INTERFACE, Nodes, node_address, node_name

# Limit for the daemons of Slurm to find each other. Seconds.
_UP_LIMIT_S = 60.0
_SLURM = """\
ClusterName=test
SlurmctldHost={control}({address})
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmdUser=root
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
SwitchType=switch/none
MpiDefault=none
StateSaveLocation={folder}/state
SlurmdSpoolDir={spool}/%n
SlurmctldPidFile={folder}/control.pid
SlurmdPidFile={folder}/daemon-%n.pid
SlurmctldLogFile={folder}/control.log
SlurmdLogFile={folder}/daemon-%n.log
SlurmdTimeout=60
ReturnToService=2
{nodes}
PartitionName=all Nodes={names} Default=YES MaxTime=INFINITE State=UP
"""


class Real:
    """The two nodes with the launchers. Programs are started from node 0."""

    def __init__(self, nodes: Nodes, count: int, copy: Path, folder: Path) -> None:
        self._folder = folder
        self._count = count
        hosts = folder / "hosts"
        lines = ["127.0.0.1 localhost", *(f"{node_address(node)} {node_name(node)}" for node in range(count))]
        hosts.write_text("\n".join(lines) + "\n")
        libraries = f"/usr/lib/{os.uname().machine}-linux-gnu"
        env = {
            # Slurm's daemons; Bazel's PATH has only programs for users.
            "PATH": f"{os.environ.get('PATH', '/usr/bin:/bin')}:/usr/sbin",
            "LD_LIBRARY_PATH": f"{libraries}/slurm-wlm:{libraries}/openmpi/lib",
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "OMP_NUM_THREADS": "1",
        }
        self._networks = nodes.network
        self._stages = []
        for node in range(count):
            stage = folder / f"stage-{node_name(node)}.json"
            fds = [f"/proc/{os.getpid()}/fd/{fd}" for fd in nodes.of(node)]
            stage.write_text(json.dumps({"node": fds, "copy": str(copy), "hosts": str(hosts), "env": env}))
            self._stages.append(stage)

    def end_all(self) -> None:
        """Kill every process on the nodes. After a cut cable, daemons of a launcher wait for each other for long."""
        wanted = {os.fstat(fd).st_ino for fd in self._networks}
        while self._kill_in(wanted):
            time.sleep(0.05)

    @staticmethod
    def _kill_in(networks: set[int]) -> int:
        found = 0
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdecimal() and os.stat(entry / "ns/net").st_ino in networks:
                    # One that has ended, and was not waited for, has no namespace.
                    os.kill(int(entry.name), signal.SIGKILL)
                    found += 1
        return found

    def start(self, node: int, program: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        """Start a program on a node, in a session of its own."""
        with log.open("ab") as file:
            return subprocess.Popen(
                [*self._staged(node), *program],
                cwd=self._folder,
                env={name: value for name, value in os.environ.items() if not name.startswith(_OURS)},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    def _staged(self, node: int) -> list[str]:
        # The module is found from the folder that this process has started in.
        return [
            sys.executable,
            "-c",
            f"import sys; sys.path[:0] = {sys.path!r}; from launcher_tests.staged import main; main()",
            str(self._stages[node]),
        ]

    @contextlib.contextmanager
    def slurm(self) -> Iterator[list[str]]:
        """Run Slurm's daemons; yields the words before a program that `srun` is to start on all nodes."""
        folder = self._folder / "slurm"
        # The path of the step daemon's socket in it has at most 107 bytes: Bazel's folders are too deep.
        spool = tempfile.mkdtemp(prefix="slurm-", dir="/tmp")
        (folder / "state").mkdir(parents=True)
        names = [node_name(node) for node in range(self._count)]
        nodes = "\n".join(
            f"NodeName={name} NodeAddr={node_address(node)} NodeHostname={name} CPUs=2 State=UNKNOWN"
            for node, name in enumerate(names)
        )
        (self._folder / "slurm.conf").write_text(
            _SLURM.format(
                control=names[0],
                address=node_address(0),
                folder=folder,
                spool=spool,
                nodes=nodes,
                names=",".join(names),
            )
        )
        (self._folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
        log = self._folder / "daemons.log"
        daemons = [self.start(0, ["slurmctld", "-D"], log)]
        daemons += [self.start(node, ["slurmd", "-D", "-N", names[node]], log) for node in range(self._count)]
        try:
            self._wait_up(log)
            yield ["srun", f"--nodes={self._count}", "--ntasks=4", "--kill-on-bad-exit=1"]
        finally:
            for daemon in daemons:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(daemon.pid, signal.SIGKILL)
                daemon.wait()
            shutil.rmtree(spool, ignore_errors=True)

    def _wait_up(self, log: Path) -> None:
        end_s = time.monotonic() + _UP_LIMIT_S
        while time.monotonic() < end_s:
            seen = self._folder / "sinfo.log"
            seen.unlink(missing_ok=True)
            self.start(0, ["sinfo", "--noheader", "--format=%D %T"], seen).wait()
            if seen.read_text().strip() == f"{self._count} idle":
                return
            time.sleep(0.2)
        logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in [log, *self._folder.glob("slurm/*.log")])
        raise AssertionError(f"Slurm is not up after {_UP_LIMIT_S:.0f} s: {seen.read_text()}\n{logs}")

    def _agent(self) -> str:
        """Return a program that starts a command on a node, as ssh would."""
        agent = self._folder / "agent.sh"
        staged = " ".join(f"'{word}'" if "'" not in word else f'"{word}"' for word in self._staged(0)[:-1])
        # hydra passes -x before the host.
        agent.write_text(
            '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nhost=$1; shift\n'
            f'exec {staged} "{self._folder}/stage-$host.json" sh -c "$*"\n'
        )
        agent.chmod(0o755)
        return str(agent)

    def mpirun(self, env: Iterable[str]) -> list[str]:
        """Return the words before a program that Open MPI's `mpirun` is to start on all nodes, with these variables."""
        hosts = ",".join(f"{node_name(node)}:2" for node in range(self._count))
        settings = {
            "plm": "rsh",
            "plm_rsh_agent": self._agent(),
            "oob_tcp_if_include": INTERFACE,
            # After the death of a rank, the others have so many seconds between SIGTERM and SIGKILL. By default, one.
            "odls_base_sigkill_timeout": "5",
        }
        mca = [word for name, value in settings.items() for word in ("--mca", name, value)]
        passed = [word for name in env for word in ("-x", name)]
        return ["mpirun.openmpi", "--allow-run-as-root", *mca, "--host", hosts, "-np", "4", *passed]

    def hydra(self, env: Iterable[str]) -> list[str]:
        """Return the same for MPICH's `mpiexec`."""
        hosts = ",".join(f"{node_name(node)}:2" for node in range(self._count))
        agent = ["-launcher", "ssh", "-launcher-exec", self._agent(), "-iface", INTERFACE]
        return ["mpiexec.hydra", *agent, "-hosts", hosts, "-n", "4", "-genvlist", ",".join(env)]


_OURS = ("BAZEL_", "COVERAGE", "DIST_", "PYTEST_", "RUNFILES_", "TEST", "XML_OUTPUT_FILE")
