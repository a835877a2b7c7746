"""deploy/aws_two_machines.sh, with a program in place of aws that keeps what it was asked to make in a folder."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT

SCRIPT = ROOT / "deploy/aws_two_machines.sh"
# Files in $MADE are what exists. A call that matches the pattern $FAILS ends with 254, as those of aws do.
AWS = """#!/usr/bin/env bash
shift 2 # --output text
echo "$*" >>"$CALLS"
if [[ $FAILS && "$*" =~ $FAILS ]]; then echo "An error occurred: $1 $2" >&2; exit 254; fi
cd "$MADE"
case "$1 $2" in
"ssm get-parameter") echo ami-1 ;;
"ec2 create-placement-group") touch place ;;
"ec2 create-security-group") touch group; echo sg-1 ;;
"ec2 run-instances") touch machines; printf 'i-1\\ti-2\\n' ;;
"ec2 describe-instances")
  [[ ! -e machines ]] || if [[ "$*" == *Public* ]]; then printf '198.51.100.1\\t10.0.0.11\\n198.51.100.2\\t10.0.0.12\\n'
  else printf 'i-1\\ti-2\\n'; fi ;;
"ec2 describe-security-groups") [[ ! -e group ]] || echo sg-1 ;;
"ec2 describe-placement-groups") [[ ! -e place ]] || echo imagenet-ddp ;;
"ec2 terminate-instances") rm machines ;;
"ec2 delete-security-group") [[ ! -e machines ]] && rm group ;;
"ec2 delete-placement-group") [[ ! -e machines ]] && rm place ;;
esac
"""


class Cloud:
    def __init__(self, folder: Path) -> None:
        self.made, self.calls = folder / "made", folder / "calls"
        self.made.mkdir()
        self.calls.touch()
        self._bin = folder / "bin"
        self._bin.mkdir()
        (self._bin / "aws").write_text(AWS)
        (self._bin / "aws").chmod(0o755)

    def run(self, *words: str, fails: str = "", **settings: str) -> subprocess.CompletedProcess[str]:
        environ = {name: value for name, value in os.environ.items() if name not in ("KEY", "ADDRESS", "NAME", "IMAGE")}
        environ |= {"MADE": str(self.made), "CALLS": str(self.calls), "FAILS": fails, **settings}
        environ["PATH"] = f"{self._bin}:{environ['PATH']}"
        return subprocess.run([SCRIPT, *words], env=environ, capture_output=True, text=True, timeout=60)

    @property
    def exists(self) -> set[str]:
        return {path.name for path in self.made.iterdir()}


@pytest.fixture
def cloud(tmp_path: Path) -> Cloud:
    return Cloud(tmp_path)


UP = {"KEY": "my-key", "ADDRESS": "203.0.113.7/32"}


def test_two_machines_are_started_once_and_removed(cloud: Cloud):
    done = cloud.run("up", **UP)
    assert done.returncode == 0, done.stderr
    assert "node 0: ssh -A ubuntu@198.51.100.1   # private address: 10.0.0.11\nnode 1:" in done.stdout
    assert cloud.exists == {"place", "group", "machines"}
    (started,) = (call for call in cloud.calls.read_text().splitlines() if "run-instances" in call)
    for words in ("--count 2", "--image-id ami-1", "--key-name my-key", "--security-group-ids sg-1"):
        assert words in started
    assert "--instance-initiated-shutdown-behavior terminate" in started
    opened = [call for call in cloud.calls.read_text().splitlines() if "authorize" in call]
    assert ["--source-group sg-1" in call or "--port 22 --cidr 203.0.113.7/32" in call for call in opened] == [True] * 2

    again = cloud.run("up", **UP)
    assert again.returncode == 2 and "there are: i-1 i-2 sg-1 imagenet-ddp.\nHint:" in again.stderr
    assert cloud.exists == {"place", "group", "machines"}, "those of the first call"

    done = cloud.run("down")
    assert (done.returncode, cloud.exists) == (0, set()), done.stderr
    assert cloud.run("down").returncode == 0


@pytest.mark.parametrize(
    "fails",
    ["ssm", "create-placement", "create-security", "port 22", "run-instances", "wait instance-status", "PublicIp"],
)
def test_what_was_made_is_removed_when_a_step_fails(cloud: Cloud, fails: str):
    done = cloud.run("up", fails=fails, **UP)
    assert done.returncode == 254
    assert "An error occurred" in done.stderr and "up has failed (exit code 254)" in done.stderr
    assert cloud.exists == set(), done.stderr


def test_what_cannot_be_removed_is_named(cloud: Cloud):
    done = cloud.run("up", fails="wait instance-status|terminate-instances|delete-", **UP)
    assert done.returncode == 254
    for left in ("machines: i-1", "i-2", "security group: sg-1", "placement group: imagenet-ddp", "NAME=imagenet-ddp"):
        assert left in done.stderr
    assert cloud.run("down", fails="describe-security").returncode == 1
    assert cloud.exists == {"group"}, "the rest was removed"


@pytest.mark.parametrize(("command", "settings"), [("up", UP), ("down", {})])
def test_a_dry_run_shows_the_commands_and_runs_none(cloud: Cloud, command: str, settings: dict[str, str]):
    shown = cloud.run(command, "--dry-run", **settings)
    assert shown.returncode == 0 and cloud.calls.read_text() == ""
    assert cloud.run("up", **UP).returncode == 0
    if command == "down":
        cloud.calls.write_text("")
        assert cloud.run("down").returncode == 0
    verbs = [line.split()[3:5] for line in shown.stderr.splitlines()]
    called = [line.split()[:2] for line in cloud.calls.read_text().splitlines()]
    assert verbs == called[-len(verbs) :]


@pytest.mark.parametrize(
    ("words", "settings", "reason"),
    [
        (["up"], {"ADDRESS": "203.0.113.7/32"}, "KEY must"),
        (["up"], {"KEY": "my-key"}, "ADDRESS must"),
        (["dowm"], {}, "got 'dowm'"),
        (["down", "--dryrun"], {}, "got 'down --dryrun'"),
        (["down"], {"NAME": "*"}, "NAME must"),
        (["down"], {"NAME": "mine,imagenet-ddp"}, "NAME must"),
    ],
)
def test_a_mistyped_command_is_refused(cloud: Cloud, words: list[str], settings: dict[str, str], reason: str):
    done = cloud.run(*words, **settings)
    assert done.returncode == 2 and reason in done.stderr and "Hint:" in done.stderr
    assert cloud.calls.read_text() == ""


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_finds_nothing():
    done = subprocess.run(["shellcheck", SCRIPT], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
