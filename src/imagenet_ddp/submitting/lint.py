"""A batch script against the config it trains: everything in it that does not fit, or is known to go wrong. No torch.

The rules stand in rules_*.py, each with its reason; RULES are all of them.
"""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from imagenet_ddp.submitting import directives, rules_lines, rules_meeting, rules_turns, rules_world
from imagenet_ddp.submitting.case import OF_A_WORLD, Case, Finding, Script
from imagenet_ddp.submitting.expansion import ARGUMENTS, Word
from imagenet_ddp.submitting.job import Allocation, Launch, launches
from imagenet_ddp.submitting.wanted import Wanted

# The options of a command, and whether torchrun starts it -> what they want, where they can be read, and mistakes.
Reader = Callable[[list[str], bool], tuple[Wanted | None, list[str]]]

OF_A_SCRIPT = rules_lines.RULES
OF_A_LAUNCH = (*rules_world.RULES, *rules_turns.RULES, *rules_meeting.RULES)
RULES = (*OF_A_SCRIPT, *OF_A_LAUNCH)


@dataclass(frozen=True)
class Outcome:
    findings: list[Finding]  # by line
    not_looked_at: list[str]  # what cannot be known before it runs
    said: list[str]  # that hangs on the machine

    @property
    def num_mistakes(self) -> int:
        return sum(finding.is_mistake for finding in self.findings)


def lint(text: str, typed: Sequence[str], reader: Reader) -> Outcome:
    """typed: options of train that stand behind the script's name, or that its command is expected to have."""
    asked = directives.read(text.replace("\r\n", "\n"))
    allocation = Allocation(asked)
    found, commands = launches(text.replace("\r\n", "\n"), allocation)
    script = Script(text, asked, allocation, found, commands)
    findings = [finding for rule in OF_A_SCRIPT for finding in rule(script)]
    left, said = [], []
    for launch in found:
        case, more, unknown = _case(script, launch, typed, reader)
        findings += more
        left += [f"line {launch.line}: {word.text}" for word in (*launch.unclear, *unknown)]
        if case is not None:
            said += case.wanted.said
            rules = OF_A_LAUNCH if launch.verb in OF_A_WORLD and not launch.unclear else rules_turns.RULES
            findings += [finding for rule in rules for finding in rule(case)]
    findings = list(dict.fromkeys(findings))
    return Outcome(sorted(findings, key=lambda each: each.line), list(dict.fromkeys(left)), list(dict.fromkeys(said)))


def _case(
    script: Script, launch: Launch, typed: Sequence[str], reader: Reader
) -> tuple[Case | None, list[Finding], list[Word]]:
    takes_typed = any(word.text == ARGUMENTS for word in launch.words)
    words = [each for word in launch.words for each in (_words(typed) if word.text == ARGUMENTS else [word])]
    known = [word.text for word in words if word.known]
    unknown = [word for word in words if not word.known]
    findings = []
    if not takes_typed and launch.verb == "train" and (missing := [word for word in typed if word not in known]):
        what = f"this line does not train what was typed: it lacks {shlex.join(missing)}."
        findings.append(Finding(launch.line, what, f'{shlex.join(missing)} at its end, or "$@" in their place.'))
    if launch.verb not in ("train", "doctor"):
        wanted = Wanted(None, None, "auto", False, "auto")
        return Case(script, launch, wanted, words), findings, unknown
    options = [text for text in known if not (launch.verb == "doctor" and text.startswith("format="))]
    wanted, mistakes = reader(options, launch.torchrun is not None)
    left_out = tuple(word.text.partition("=")[0].lstrip("+") for word in unknown)
    for text in mistakes:
        if not text.startswith(left_out):  # which may be right, once it is known
            what, _, hint = text.partition(" HINT: ")
            findings.append(Finding(launch.line, what, hint))
    return (Case(script, launch, wanted, words) if wanted else None), findings, unknown


def _words(typed: Sequence[str]) -> list[Word]:
    return [Word(text) for text in typed]
