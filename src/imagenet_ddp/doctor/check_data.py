"""Check the files of a run: the layout of the images, whether they can be read, and the run folder."""

from imagenet_ddp.data import inspect
from imagenet_ddp.doctor.checks import Check, CheckFunction, Machine, failed, passed
from imagenet_ddp.runs import validate as run_check
from imagenet_ddp.runs.checkpoints import CheckpointStore
from imagenet_ddp.system.paths import not_writable_reason

DEFAULT_NUM_CLASSES = 1000  # if they cannot be counted


def _data(machine: Machine) -> list[Check]:
    data, layout = machine.config["data"], machine.layout
    if data["_target_"]:
        return _own_source(machine)
    if layout.mistakes:
        return failed(layout.mistakes)
    words, numbers = [], {"num_classes": layout.num_classes}
    for name, split in layout.splits.items():
        counts = split.counts.values()
        spread = f"{min(counts)} to {max(counts)}" if min(counts) != max(counts) else f"{min(counts)}"
        words.append(
            f"{split.num_images:,} images in {split.images.location}, {spread} of each of {len(counts):,} classes"
        )
        numbers[f"num_{name}_images"] = split.num_images
    if len(words) == 2:
        train, val = (split.num_images for split in layout.splits.values())
        words.append(f"{train / val:.3g} training images for each validation image")
    return passed(
        "; ".join([f"{data['name']}: " + "; ".join(words) if words else data["name"], *layout.notes]), **numbers
    )


def _own_source(machine: Machine) -> list[Check]:
    """Open data._target_ as training does, and count its images."""
    from imagenet_ddp.data.sources.registry import open_source

    source = open_source(machine.config["data"], machine.config["seed"], machine.environ)
    train, val = (len(images) if images is not None else 0 for images in (source.train, source.val))
    what = f"{machine.config['data']['_target_']}: {train:,} training and {val:,} validation images"
    numbers = {"num_classes": len(source.classes), "num_train_images": train, "num_val_images": val}
    return passed(f"{what} of {len(source.classes):,} classes", **numbers)


def _samples(machine: Machine) -> list[Check]:
    layout = machine.layout
    if layout.mistakes:
        return passed("not read, because the check data failed")
    if not layout.splits:
        return passed("there are no images that can be read one by one")
    reading = inspect.read_samples(layout)
    if reading.mistakes:
        return failed(reading.mistakes)
    what = f"{reading.num_read:,} images read and decoded, from as many classes as time allowed"
    return passed(f"{what}, {reading.images_per_s:,.0f} a second on one core", num_read=reading.num_read,
              decoded_images_per_s=round(reading.images_per_s, 1))  # fmt: skip


def _run_folder(machine: Machine) -> list[Check]:
    """Check that the run folder can be created in its nearest existing parent, without creating it."""
    if mistakes := run_check.validate(machine.config, machine.environ, verb="train"):
        return failed(mistakes)
    wanted = machine.run_dir.absolute()
    if reason := not_writable_reason(wanted):
        return failed([f"the run folder {wanted} cannot be created: {reason}. Hint: set hydra.run.dir=FOLDER."])
    store = CheckpointStore.planned(machine.config.callbacks, wanted)
    free, size = store.free_bytes(), checkpoint_bytes(machine)
    numbers = {"free_mib": free // 2**20, "checkpoint_mib": round(size / 2**20, 1)}
    model = machine.config.model.name
    what = f"{free / 2**30:,.1f} GiB free for {store.folder}; a checkpoint of {model} takes {size / 2**20:,.0f} MiB"
    if free < store.MOST_FILES * size:
        hint = "set hydra.run.dir=FOLDER with a folder on another disk"
        return [Check("", False, f"{what}, and {store.MOST_FILES} must fit", hint, numbers=numbers)]
    return passed(what, **numbers)


def checkpoint_bytes(machine: Machine) -> int:
    """Return the size of a checkpoint in bytes: weights, buffers, the optimizer's state and the average of the weights.

    With momentum, the state has as many numbers as there are weights. For an optimizer of another package, twice as
    many are assumed.
    """
    import torch

    from imagenet_ddp.models.factory import create_model
    from imagenet_ddp.models.optimizers import num_states
    from imagenet_ddp.runs.checkpoint_file import checkpoint_bytes

    config, num_classes = machine.config, machine.layout.num_classes or DEFAULT_NUM_CLASSES
    with torch.device("meta"):  # allocates no memory
        net = create_model(config.model, num_classes, config["seed"], config["data"]["image_size"])
    of_optimizer = num_states(config.optim)
    averages = config.averaging.name != "none"
    return checkpoint_bytes(net, (2 if of_optimizer is None else of_optimizer) + averages)


CHECKS: tuple[tuple[str, CheckFunction], ...] = (
    ("data", _data),
    ("images", _samples),
    ("run folder", _run_folder),
)
