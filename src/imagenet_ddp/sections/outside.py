"""Section: the images outside the class folders, which have no class."""

from imagenet_ddp.curation.wrong_labels import REMOVE
from imagenet_ddp.data.sources.image_files import FileImages
from imagenet_ddp.data.sources.walk import name_loose
from imagenet_ddp.pages.thumbnails import thumbnail
from imagenet_ddp.sections.section import MOST_CLASSES, Checked, Finding, Section, Urgency
from imagenet_ddp.system.table_files import table_bytes
from imagenet_ddp.system.text import alphabetical, count_noun

NUM_PICTURES = 200
FILE = "outside_classes.csv"


def outside(checked: Checked) -> Section | None:
    splits = [images for images in checked.images.values() if isinstance(images, FileImages)]
    number, loose = sum(images.left_out["beside"] for images in splits), [images.loose_images() for images in splits]
    places = [(images, index) for images in loose for index in range(len(images))]
    paths = [images.path(index) for images, index in places]
    copies = {path: other for path in paths if (other := checked.copies_outside.get(path))}
    rows = [(path, checked.decided(FILE, path) or REMOVE * (path in copies)) for path in paths]
    files = {FILE: table_bytes(("path", "decision"), rows, checked.delimiter)} if FILE in checked.relabel else {}
    if not number:
        return Section("outside", "", files=files)
    lies, is_not = ("lies", "is not") if number == 1 else ("lie", "are not")
    names = [images.name(index) for images, index in places]
    others = [name for name, path in zip(names, paths, strict=True) if path not in copies]
    parts = [name_loose(others, number - len(copies))] if number > len(copies) else []
    if copies:
        have, them = ("has", "it") if len(copies) == 1 else ("have", "them")
        who = f"{len(copies):,}" if len(copies) < number else "it" if number == 1 else "they"
        parts.append(f"{who} {have} the content of an image in a class folder, so remove {them}")
    text = f"{count_noun(number, 'image')} {lies} outside the class folders and {is_not} used: {'; '.join(parts)}."
    findings = [Finding(text, Urgency.SOON, "outside")]
    classes = sorted(checked.classes, key=alphabetical) if len(checked.classes) <= MOST_CLASSES else ()
    pictures = [
        {"uri": thumbnail(*place), "path": path, "name": name, "label": "no class", "copy_of": copies.get(path, ""),
         "choice": checked.choice(FILE, path, classes=classes, chosen=REMOVE * (path in copies))}
        for place, path, name in zip(places[:NUM_PICTURES], paths, names, strict=False)
    ]  # fmt: skip
    context = {
        "number": number, "num_listed": len(rows), "pictures": pictures, "file": FILE,
        "command": checked.relabel.get(FILE, ""),
    }  # fmt: skip
    title = "Images outside the class folders"
    return Section("outside", "Outside the classes", context, findings, title, files=files, decide=FILE)
