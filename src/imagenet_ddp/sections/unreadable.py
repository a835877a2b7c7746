"""Section: the images that cannot be read."""

from imagenet_ddp.sections.section import Checked, Finding, Section, Urgency
from imagenet_ddp.system.table_files import table_bytes
from imagenet_ddp.system.text import count_noun

NUM_ROWS = 200
FILE = "bad_images.csv"


def unreadable(checked: Checked) -> Section | None:
    number, total = len(checked.unreadable), sum(map(len, checked.images.values()))
    paths = [checked.images[split].path(index) for split, index, _ in checked.unreadable]
    bad = list(zip(checked.unreadable, paths, strict=True))
    listed = [(path, reason, checked.decided(FILE, path)) for (_, _, reason), path in bad]
    files = {FILE: table_bytes(("path", "reason", "decision"), listed, checked.delimiter)}
    if not number:
        finding = Finding(f"All {total:,} images can be read.", Urgency.GOOD)
        return Section("unreadable", "", findings=[finding], files=files)
    text = f"{number:,} of {count_noun(total, 'image')} cannot be read: "
    text += "copy the file again, or remove it." if number == 1 else "copy the files again, or remove them."
    rows = [
        {"name": checked.name(split, index), "path": path, "reason": reason, "choice": checked.choice(FILE, path)}
        for (split, index, reason), path in bad[:NUM_ROWS]
    ]
    context = {"rows": rows, "number": number, "file": FILE, "command": checked.relabel.get(FILE, "")}
    findings = [Finding(text, Urgency.FIRST, "unreadable")]
    return Section("unreadable", "Unreadable", context, findings, "Unreadable images", files=files, decide=FILE)
