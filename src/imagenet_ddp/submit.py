"""python -m imagenet_ddp.submit: the batch script for a config, shown, written or submitted; or a person's own one,
checked against the config. No torch.

Exit codes: 0 done, or nothing wrong found; 1 submit.check has found a mistake, or sbatch has refused; 2 wrong options.
"""

import os
import sys
from pathlib import Path

from imagenet_ddp import check, screen, shell
from imagenet_ddp.schema import ConfigError
from imagenet_ddp.submitting import asked, files, lint, queue, render, wanted
from imagenet_ddp.submitting.asked import Plan
from imagenet_ddp.submitting.wanted import Wanted


def main() -> None:
    with shell.answering("submit"):
        plan = shell.planned("submit", asked.read)
        if plan.options["check"] is not None:
            sys.exit(_check(plan))
        text = _made(plan)
        for line in _notes(plan):
            screen.say(line)
        if plan.options["out"] is None and not plan.options["now"]:
            print(text, end="", flush=True)
            return
        path = Path(plan.options["out"]) if plan.options["out"] is not None else files.new(plan.wanted.name)
        files.write(path, text)
        if not plan.options["now"]:
            print(f"{path}\n  sbatch {path}")
            return
        try:
            _submit(plan, path)
        except ConfigError as error:
            check.show(error, "submit")
            sys.exit(1)


def _made(plan: Plan) -> str:
    text = render.render(plan, plan.options["setup"] or render.setup_here(os.environ))
    # submit.extra and submit.setup may say anything
    outcome = lint.lint(text, [], lambda words, torchrun: (plan.wanted, []))
    wrong = [finding for finding in outcome.findings if finding.is_mistake]
    if wrong:
        raise ConfigError([f"{finding.what} HINT: {finding.hint}" for finding in wrong])
    return text


def _notes(plan: Plan) -> list[str]:
    said = []
    if plan.wanted.devices is None:
        what = "process" if plan.wanted.accelerator == "cpu" else "GPU"
        said.append(f"trainer.devices is not set: one {what} per node is asked for; trainer.devices=8 asks for 8.")
    said += [f"Not refused here, because the job's nodes may see it otherwise: {text}" for text in plan.wanted.said]
    return said


def _submit(plan: Plan, path: Path) -> None:
    log = render.log(plan)
    if "%" not in str(Path(log).parent):
        Path(log).parent.mkdir(parents=True, exist_ok=True)  # SLURM makes none, and the job would end without a word
    job = queue.submit(path, os.environ)
    num_jobs = plan.wanted.num_jobs
    array = "" if num_jobs is None else f", an array of {num_jobs}"
    print(f"Job {job}{array}: {path}")
    for line in queue.next_lines(job, log, num_jobs):
        print(f"  {line}")


def _check(plan: Plan) -> int:
    file = plan.options["check"]
    try:
        text = Path(file).read_bytes().decode("utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}. HINT: submit.check=FILE.") from error

    def read(words: list[str], torchrun: bool) -> tuple[Wanted | None, list[str]]:
        try:
            return wanted.look(wanted.compose(words, os.environ)[0], os.environ, torchrun=torchrun)
        except ConfigError as error:
            return None, error.mistakes

    outcome = lint.lint(text, plan.train_argv, read)
    for finding in outcome.findings:
        head = f"{file}, line {finding.line}: {'' if finding.is_mistake else 'note: '}"
        screen.say(f"{head}{finding.what} HINT: {finding.hint}", sys.stdout)
    if outcome.not_looked_at:
        screen.say(f"Not looked at, because only the job knows: {'; '.join(outcome.not_looked_at)}", sys.stdout)
    for said in outcome.said:
        screen.say(f"Not refused here, because the job's nodes may see it otherwise: {said}", sys.stdout)
    count = outcome.num_mistakes
    notes = len(outcome.findings) - count
    more = f", {notes} note{'' if notes == 1 else 's'}" if notes else ""
    print(f"{file}: {count or 'no'} mistake{'' if count == 1 else 's'}{more}.")
    return int(count > 0)


if __name__ == "__main__":
    main()
