"""Offer what a person may decide about the labels below the pictures of a report."""

from pathlib import Path

from imagenet_ddp.curation.decision_lists import DECISIONS, earlier_decisions
from imagenet_ddp.report.predictions import Predictions
from imagenet_ddp.sections.section import Checked


def decided_of(found: Predictions, file: Path, relabel: str) -> Checked:
    """Return what the macro `choose` needs of the evaluated images, with what a person has decided about an earlier
    list. file: the list. relabel: the line that carries it out; "": nothing can."""
    earlier = {file.name: earlier_decisions(file, file.with_name(DECISIONS))}
    lines = {file.name: relabel} if relabel else {}
    return Checked("", found.labels, {}, relabel=lines, can_remove=True, classes=found.classes, decisions=earlier)
