"""What can be known of a script's words, held against bash itself."""

import subprocess

import pytest
from conftest import clean_environ

from imagenet_ddp.submitting import expansion

ENVIRON = {"SLURM_NNODES": "2", "SLURM_NTASKS": "16", "SLURM_GPUS_ON_NODE": None}


def words(text: str) -> list[list[str]]:
    return [
        [word.text if word.known else f"?{word.text}" for word in each.words] for each in expansion.run(text, ENVIRON)
    ]


@pytest.mark.parametrize(
    "text",
    [
        "run a 'b c' \"d e\" f\\ g",
        "run a \\\n  b \\\n  c # d",
        "x=1; run $x ${x} \"$x\" '$x' \\$x",
        "x='a b'; run $x \"$x\"",
        "run ${none:-1} ${none-2} ${SLURM_NNODES:-3} ${SLURM_GPUS_ON_NODE:-4} \"${none:-$SLURM_NNODES}\"",
        "n=8; run $((SLURM_NNODES * n)) $(( (n - 1) / 2 )) --x=$((n%3))",
        "a=(1 'b c' --d=$SLURM_NNODES); a+=(e); run \"${a[@]}\" f",
        "a=(1 \\\n  2\n  3 # four\n); run \"${a[@]}\"",
        "export A=1 B=2; run $A$B",
        "run a > /dev/stdout; run b 2>&1",
        "if true; then run a; else run b; fi | cat",
        "{ run a; } && ! run b || run c",
        "cat <<EOF >/dev/null\nrun no\nEOF\nrun yes",
        "cat > /dev/null <<'EOF'\nit's no\nEOF\nrun yes",
        "run \"a \\\"b\\\" \\n\" '' \"\"",
        "run a=\"b c\"d 'e'f",
        "run a#b #c",
    ],
)  # fmt: skip
def test_as_bash(text: str) -> None:
    program = 'run() { for word in "$@"; do printf "<%s>" "$word"; done; echo; }\n'
    environ = clean_environ(SLURM_NNODES="2", SLURM_NTASKS="16")
    done = subprocess.run(["bash"], input=program + text, capture_output=True, text=True, env=environ)
    said = "".join(f"{''.join(f'<{word}>' for word in each[1:])}\n" for each in words(text) if each[0] == "run")
    taken = [line for line in said.splitlines() if "if true" not in text or line == "<a>"]
    assert taken == done.stdout.splitlines()


def test_what_only_the_job_knows() -> None:
    assert words('run $SLURM_JOB_ID "$HOME" $(date) `date` ${x%.*} a$1') == [
        ["run", "?$SLURM_JOB_ID", "?$HOME", "?$(date)", "?`date`", "?${x%.*}", "?a$1"]
    ]
    assert words("run $(f \"a)\" '(') b") == [["run", "?$(f \"a)\" '(')", "b"]]


def test_a_function_sees_what_is_set_later() -> None:
    assert words("f() { run $x; }\nx=1\nf")[1:] == [["run", "1"], ["f"]]


def test_lines() -> None:
    text = "a=1\n\nrun \\\n  b\na=(1\n2)\nrun 'c\nd'\nrun e"
    assert [(each.line, each.words[-1].line) for each in expansion.run(text, {})] == [(3, 4), (7, 7), (9, 9)]


@pytest.mark.parametrize(
    "text", ["run 'a", 'run "a', "run $(a", "run ${a", "a=(1", "run `a", "run a\\", "<<", "$((", ")"]
)
def test_a_broken_script_is_read_to_its_end(text: str) -> None:
    words(text)
