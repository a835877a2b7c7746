"""Run a real SLURM on this machine (munged, slurmctld and two slurmd) in a temporary folder until the tests end.

    with Cluster() as cluster:
        done = cluster.run(["srun", "--ntasks=2", "hostname"])

Nodes n1 and n2 have four CPUs and two fake GPUs each. Their names have no DNS entry, and their address in SLURM's
configuration is 127.0.0.1. The daemons use free ports, and no file of an installed SLURM is read or written.
"""

import contextlib
import ctypes
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from conftest import clean_environ
from helpers.forked_commands import write_programs
from helpers.ports import free_port

DAEMONS = ("munged", "slurmctld", "slurmd")
COMMANDS = ("sbatch", "srun", "scontrol", "scancel", "squeue")
CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_min_interval=0,batch_sched_delay=0,sched_interval=5,bf_interval=3
GresTypes=gpu
JobRequeue=1
MinJobAge=300
FirstJobId={first_job}
ReturnToService=2
KillWait=15
AccountingStorageType=accounting_storage/none
MpiDefault=none
{nodes}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=grace Nodes=ALL MaxTime=INFINITE State=UP GraceTime=120
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2
"""
NODE = "NodeName=n{number} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4 RealMemory=4000 Gres=gpu:2"
# Device files that every Linux has represent the GPUs. SLURM counts these files and never opens them.
GRES = "NodeName=n[1-2] Name=gpu File=/dev/tty[1-2]\n"
POLL_S = 0.5  # each question to SLURM starts a process
FINAL_STATES = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


def requirement() -> str | None:
    """Return the reason why SLURM cannot run on this machine, or None if it can."""
    if os.geteuid() != 0:
        return "running SLURM needs root"
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    if missing := [name for name in (*DAEMONS, *COMMANDS) if shutil.which(name, path=path) is None]:
        return f"SLURM is not installed ({', '.join(missing)}; packages slurm-wlm, munge)"
    try:
        pwd.getpwnam("munge")
    except KeyError:
        return "munged runs as the user munge, which does not exist"
    return None


def _end_with_parent() -> None:
    """Terminate this daemon when its parent ends, so that no daemon remains if the tests are killed."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


class Cluster:
    def __init__(self) -> None:
        # short, because a socket's path has at most 107 characters; and munged refuses folders that others may write to
        self.folder = Path(tempfile.mkdtemp(prefix="slurm_", dir="/var/tmp"))
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._waiting: dict[str, float] = {}  # requeued job -> start of its wait
        self.environ = {**clean_environ(), "SLURM_CONF": str(self.folder / "slurm.conf")}
        self.environ["PATH"] = f"{Path(sys.executable).parent}:{self.environ['PATH']}:/usr/sbin:/sbin"
        # of a job whose subject is not the start of Python
        self.forked = {"PATH": f"{write_programs(self.folder / 'bin')}:{self.environ['PATH']}"}

    def __enter__(self) -> "Cluster":
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(Exception):
            self.cancel_all(20)
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(daemon.pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self) -> None:
        host, munge = socket.gethostname().partition(".")[0], self.folder / "munge"
        self.folder.chmod(0o755)
        munge.mkdir(mode=0o711)
        (munge / "key").write_bytes(os.urandom(1024))
        (munge / "key").chmod(0o600)
        for path in (munge, munge / "key"):
            shutil.chown(path, "munge")
        (self.folder / "state").mkdir()
        for number in (1, 2):
            (self.folder / f"spool-n{number}").mkdir()
        # a job's port is derived from its number, so each pytest worker's SLURM uses its own numbers
        first_job = 1 + 500 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
        nodes = "\n".join(NODE.format(number=number, host=host, port=free_port()) for number in (1, 2))
        (self.folder / "slurm.conf").write_text(
            CONF.format(host=host, ctld=free_port(), folder=self.folder, nodes=nodes, first_job=first_job)
        )
        (self.folder / "gres.conf").write_text(GRES)
        paths = [
            f"--{name}={munge / name.partition('-')[0]}" for name in ("key-file", "socket", "pid-file", "log-file")
        ]
        paths.append(f"--seed-file={munge}/seed")
        self._daemon("munged", "--foreground", *paths, user="munge")
        self.until(lambda: (munge / "socket").exists(), 10)
        self._daemon("slurmctld", "-D")
        for number in (1, 2):
            self._daemon("slurmd", "-D", "-N", f"n{number}")
        self.until(lambda: self.run(["sinfo", "-h", "-o", "%t %D"], check=False).stdout.strip() == "idle 2", 30)

    def _daemon(self, *command: str, user: str | None = None) -> None:
        program = shutil.which(command[0], path=self.environ["PATH"]) or command[0]
        with (self.folder / f"{command[0]}{len(self._daemons)}.out").open("wb") as output:
            daemon = subprocess.Popen(
                [program, *command[1:]], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                env=self.environ, user=user, start_new_session=True, preexec_fn=_end_with_parent,
            )  # fmt: skip
        self._daemons.append(daemon)

    def run(
        self,
        command: Sequence[str | Path],
        *,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
        check: bool = True,
        timeout_s: float = 120,
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            list(map(str, command)), cwd=cwd, env={**self.environ, **(env or {})}, capture_output=True, text=True,
            timeout=timeout_s, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert not check or done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def submit(self, *words: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
        """Run sbatch, and return the number of the job."""
        found = re.search(r"Submitted batch job (\d+)", self.run(["sbatch", *words], cwd=cwd, env=env).stdout)
        assert found
        return found[1]

    def job(self, job: str) -> dict[str, str]:
        """Return the fields that scontrol shows of a job, or of the first task of a job array."""
        shown = self.run(["scontrol", "show", "job", "--oneliner", job]).stdout.splitlines()[0]
        return dict(re.findall(r"(\S+?)=(\S*)", shown))

    def end(self, job: str, timeout_s: float = 400) -> dict[str, str]:
        """Wait for the end of a job, and return its fields. A requeued job is started without SLURM's delay."""
        limit = time.monotonic() + timeout_s
        while (fields := self.job(job))["JobState"] not in FINAL_STATES:
            self.hasten()
            assert time.monotonic() < limit, f"job {job} is {fields['JobState']} ({fields['Reason']})"
            time.sleep(POLL_S)
        return fields

    def hasten(self) -> None:
        """Start requeued jobs after four seconds, in which their old processes end, instead of SLURM's two minutes."""
        now = time.monotonic()
        waiting = self.run(["squeue", "-h", "-r", "-t", "PENDING", "-o", "%A %r"], check=False).stdout.split("\n")
        jobs = {line.partition(" ")[0] for line in waiting if line.endswith(" BeginTime")}
        self._waiting = {job: self._waiting.get(job, now) for job in jobs}
        for job in [job for job, since in self._waiting.items() if now - since > 4]:
            self.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], check=False)

    def time_out(self, job: str) -> None:
        """Lower the job's time limit to one or two minutes from now, so that SLURM sends the signal of
        --signal=USR2@120 when it next checks time limits, which it does every half minute.

        Returns when the job has been requeued and has a longer time limit again.
        """
        fields = self.job(job)
        hours, minutes, _ = map(int, fields["RunTime"].split(":"))
        self.run(["scontrol", "update", f"JobId={job}", f"TimeLimit={60 * hours + minutes + 2}"])
        self.until(lambda: self.job(job)["Restarts"] != fields["Restarts"], 180)
        self.run(["scontrol", "update", f"JobId={job}", "TimeLimit=60"])

    def preempt(self, job: str, cwd: Path) -> None:
        """Take the nodes from the job by one of a higher partition, and return when they are free again."""
        restarts, command = self.job(job)["Restarts"], ["sbatch", "--parsable", "--partition=high", "--nodes=2"]
        other = self.run([*command, "--exclusive", "--output=/dev/null", "--wrap=true"], cwd=cwd).stdout.strip()
        self.until(lambda: self.job(other)["JobState"] == "COMPLETED")
        assert int(self.job(job)["Restarts"]) == int(restarts) + 1

    def until(self, condition: Callable[[], object], timeout_s: float = 180) -> None:
        limit = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < limit, f"timed out after {timeout_s} s\n{self.logs()}"
            time.sleep(POLL_S)

    def cancel_all(self, timeout_s: float = 120) -> None:
        """Cancel all jobs, and wait until their processes have ended."""
        is_idle = lambda: not self.run(["squeue", "-h"], check=False).stdout  # noqa: E731
        if not is_idle():
            self.run(["scancel", "--user=root"], check=False)
            self.until(is_idle, timeout_s)

    def logs(self) -> str:
        return "\n".join(f"== {path.name}\n{path.read_text()[-2000:]}" for path in self.folder.glob("*.out"))
