"""Extract one split of ImageNet from its archive into class folders, using threads. An interrupted run can be resumed.

train.unpacking/.n01440764 is a class that is being written, and train.unpacking/n01440764 is a finished class. Once all
classes are complete, train.unpacking is renamed to train.
"""

import os
import shutil
import tarfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from imagenet_ddp.data.sources.listing import list_folder
from imagenet_ddp.errors import RunError
from imagenet_ddp.prepare.imagenet.archives import ClassImages, file_name, regular_files
from imagenet_ddp.system.console import print_message
from imagenet_ddp.system.progress_bar import Progress
from imagenet_ddp.system.text import count_noun


def draft_folder(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.unpacking")


def extract(archive: Path, folder: Path, classes: Sequence[ClassImages], num_images: int, num_threads: int) -> None:
    """Extract all classes to `folder`, which exists only once it has num_images images. Raises RunError if images are
    missing, OSError if the disk fails. Finished classes are kept for the next run."""
    draft = draft_folder(folder)
    draft.mkdir(exist_ok=True)
    todo = [one for one in classes if not _is_complete(draft / one.name)]
    if num_done := len(classes) - len(todo):
        print_message(f"Resuming: {num_done:,} of {count_noun(len(classes), 'class')} are already extracted.")
    progress = Progress(folder.name, len(classes), "classes", rate=False)
    progress.add_earlier(num_done)
    # Threads are enough, because reading and writing release the interpreter's lock. If this process is killed, no
    # child process continues to write.
    with ThreadPoolExecutor(num_threads) as pool:
        try:
            for future in as_completed([pool.submit(_extract_class, archive, one, draft) for one in todo]):
                future.result()
                progress.add(1)
        except SystemExit:
            progress.close()
            print_message(f"Stopped. {progress.line()}. Run the same command again to resume.")
            raise
        finally:
            pool.shutdown(cancel_futures=True)
            progress.close()
    extracted = sum(len(list_folder(draft / one.name)[0]) for one in classes)
    if extracted != num_images:
        raise RunError(
            f"{draft} must have {count_noun(num_images, 'image')}, got {extracted:,}. Hint: delete that folder, "
            "then run the same command again."
        )
    os.sync()  # a power cut must not leave empty files under the final name
    draft.rename(folder)


def _extract_class(archive: Path, one: ClassImages, draft: Path) -> None:
    part, folder = draft / f".{one.name}", draft / one.name
    for old in (part, folder):  # left by a killed run
        shutil.rmtree(old, ignore_errors=True)
    part.mkdir()
    with archive.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as outer:
        if one.inner_tar is None:
            _copy(outer, one.images, part)
        else:
            inner = outer.extractfile(one.inner_tar)
            assert inner is not None
            images = regular_files(inner)
            inner.seek(0)
            with tarfile.open(fileobj=inner, mode="r:") as tar:
                _copy(tar, images, part)
    part.rename(folder)


def _copy(tar: tarfile.TarFile, images: Sequence[tarfile.TarInfo], folder: Path) -> None:
    for image in images:
        file = tar.extractfile(image)
        assert file is not None
        (folder / file_name(image)).write_bytes(file.read())


def _is_complete(folder: Path) -> bool:
    """Return whether a class is finished and none of its files was emptied by a power cut."""
    sizes = [entry.stat().st_size for entry in os.scandir(folder)] if folder.is_dir() else []
    return bool(sizes) and all(sizes)
