"""Make a repository of the Hugging Face hub of an exported file: config.json beside it, and one commit."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from imagenet_ddp.cli.overrides import quoted, shell_line
from imagenet_ddp.config.paths import HUB
from imagenet_ddp.config.schema.export import ExportConfig
from imagenet_ddp.errors import RunError
from imagenet_ddp.export import model_card, program, timm_config
from imagenet_ddp.exported.formats.base import CARD, CONFIG, KEY
from imagenet_ddp.exported.formats.check_model_file import export_path
from imagenet_ddp.models.weights import hub
from imagenet_ddp.system.files import atomic_write


def push(config: ExportConfig, argv: list[str]) -> Iterator[str]:
    """Push the file that export has written, its config.json, card and program, and yield a sentence after each step.
    argv: the options as typed. Raises RunError if the hub does not take them; they stay in their folder."""
    path, repository = export_path(config), str(config.push).removeprefix(HUB)
    metadata = _metadata(path)
    atomic_write(path.with_name(CONFIG), json.dumps(timm_config.content(metadata), indent=2) + "\n")
    beside = {CARD: model_card.is_card, program.NAME: program.is_program}
    names = [path.name, CONFIG, *(name for name, is_ours in beside.items() if is_ours(path.with_name(name)))]
    try:
        url = hub.push(path.parent, names, repository)
    except RunError as error:
        again = shell_line("export", [*(each for each in argv if each != "overwrite=true"), "overwrite=true"])
        raise RunError(f"{error}. {', '.join(names)} are in {path.parent}. Hint: run `{again}`.") from None
    yield f"Pushed to {url}: {', '.join(names)}. A new repository is private; its settings page makes it public."
    model = metadata["model"]
    if name := timm_config.architecture(model):
        yield f'timm reads it: timm.create_model("hf_hub:{repository}", pretrained=True), which is {name}.'
        yield from (f"{clause}." for clause in timm_config.not_in_timm(metadata))
    if not model["_target_"]:
        options = [f"model.name={model['name']}", f"model.library={model['library']}", f"model.weights={config.push}"]
        yield f"This project reads it: `{shell_line('predict', [*map(quoted, options), 'images=FOLDER'])}`"


def _metadata(path: Path) -> dict[str, Any]:
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        return json.loads(file.metadata()[KEY])
