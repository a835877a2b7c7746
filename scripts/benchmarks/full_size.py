"""Rehearse ImageNet's size with tiny images: python scripts/benchmarks/full_size.py FOLDER [processes=8]

FOLDER gets 1,281,167 training and 50,000 validation images of 32 pixels in 1,000 classes, as hard links to one file per
class and part (about 1.3 million entries of a directory, 80 MB), and stays for the next time. Each line of the table is
one command: its seconds from start to end, and the memory of its largest process and of all (proportional set size,
sampled every half second), with a bare script that makes torchvision's ImageFolder and loads one batch beside it.
"""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from PIL import Image

from imagenet_ddp.system.cpu_cores import cpu_model, num_cores

NUM_CLASSES, NUM_TRAIN, NUM_VAL, SIZE = 1000, 1_281_167, 50_000, 32
TINY = (f"data.image_size={SIZE}", "data.val_resize=null", "data.batch_size=64", "data.val_batch_size=256",
        "data=imagefolder", "optim.lr=0.01")  # fmt: skip
BARE = """
import sys, torch
from torchvision import transforms
from torchvision.datasets import ImageFolder
images = ImageFolder(sys.argv[1], transforms.ToTensor())
loader = torch.utils.data.DataLoader(images, 64, shuffle=True, num_workers=2)
print(len(images), next(iter(loader))[0].shape)
"""


def make_images(root: Path) -> None:
    """Make the tree of images; parts that are there are left as they are."""
    for part, num_images in (("train", NUM_TRAIN), ("val", NUM_VAL)):
        for label in range(NUM_CLASSES):
            folder = root / part / f"class{label:04}"
            if folder.is_dir():
                continue
            draft = folder.with_name(f".{folder.name}")
            draft.mkdir(parents=True, exist_ok=True)
            count = num_images // NUM_CLASSES + (label < num_images % NUM_CLASSES)
            first = draft / "0.jpg"
            colour = (label % 10 * 25, label // 10 % 10 * 25, label // 100 * 25 + (part == "val"))
            Image.new("RGB", (SIZE, SIZE), colour).save(first)
            for number in range(1, count):
                os.link(first, draft / f"{number}.jpg")
            draft.rename(folder)


def memory_mib(root: int) -> list[float]:
    """Return the proportional set sizes of a process and of all below it, in MiB, the largest first."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text(encoding="utf-8").rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
    found, below = [], {root}
    while below:
        for pid in below:
            try:
                lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
                found.append(sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024)
            except OSError:
                continue
        below = {pid for pid, parent in parents.items() if parent in below}
    return sorted(found, reverse=True)


def measured(name: str, *command: str) -> list[str]:
    """Run a command, and return its row: name, seconds, MiB of the largest process, MiB of all, processes."""
    start, largest, total, number = time.monotonic(), 0.0, 0.0, 0
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    output: list[str] = []
    reader = threading.Thread(target=lambda: output.append(process.stdout.read() if process.stdout else ""))
    reader.start()
    while process.poll() is None:
        sizes = memory_mib(process.pid)
        largest, total, number = max([largest, *sizes]), max(total, sum(sizes)), max(number, len(sizes))
        time.sleep(0.5)
    seconds = time.monotonic() - start
    reader.join()
    if process.returncode:
        sys.exit(f"{name} ended with {process.returncode}:\n{''.join(output)}")
    print(f"{name}: {seconds:.1f} s", file=sys.stderr, flush=True)
    return [name, f"{seconds:.1f}", f"{largest:,.0f}", f"{total:,.0f}", str(number)]


def main() -> None:
    folder, *words = sys.argv[1:]
    processes = int(dict(word.split("=") for word in words).get("processes", 8))
    root, runs = Path(folder) / "images", Path(folder) / f"runs-{time.strftime('%Y%m%d-%H%M%S')}"
    make_images(root)
    train = ("-m", "imagenet_ddp.train", *TINY, f"data.root={root}")
    two_steps = ("trainer.limit_train_batches=2", "trainer.max_epochs=1", "trainer.limit_val_batches=2")
    packed = Path(folder) / "packed"
    if not (packed / "packed.json").exists():
        pack = ("-m", "imagenet_ddp.prepare", "prepare=pack", "data=imagefolder", f"data.root={root}", f"out={packed}")
        rows = [measured("pack the files", *pack)]
    else:
        rows = []
    of_pack = ("data=packed", f"data.root={packed}")
    many = (f"trainer.devices={processes}", "trainer.accelerator=cpu", "data.num_workers=1")
    run = runs / "one"
    rows += [
        measured("torchvision's ImageFolder, one batch, 2 loader processes", "-c", BARE, str(root / "train")),
        measured("two steps, 1 process", *train, *two_steps, f"hydra.run.dir={runs / 'two'}"),
        measured(f"two steps, {processes} processes", *train, *two_steps, *many, f"hydra.run.dir={runs / 'many'}"),
        measured("two steps, 1 process, packed", *train, *two_steps, *of_pack, f"hydra.run.dir={runs / 'packed'}"),
        measured(f"two steps, {processes} processes, packed", *train, *two_steps, *of_pack, *many,
                 f"hydra.run.dir={runs / 'packs'}"),
        measured("200 steps, 50,000 validation images", *train, "trainer.limit_train_batches=200",
                 "trainer.max_epochs=1", f"hydra.run.dir={run}"),
        measured("resume: 200 steps, 50,000 validation images", "-m", "imagenet_ddp.train", f"resume={run}",
                 "trainer.max_epochs=2"),
        measured("evaluate 50,000 images", "-m", "imagenet_ddp.evaluate", f"checkpoint={run}",
                 f"hydra.run.dir={runs / 'evaluated'}"),
        measured("report", "-m", "imagenet_ddp.report", str(run)),
    ]  # fmt: skip
    for row in (["command", "seconds", "MiB, largest process", "MiB, all", "processes"], ["---", *["---:"] * 4], *rows):
        print(f"| {' | '.join(row)} |")
    print(f"\n{num_cores()} cores of {cpu_model()}: `python scripts/benchmarks/full_size.py FOLDER`")


if __name__ == "__main__":
    main()
