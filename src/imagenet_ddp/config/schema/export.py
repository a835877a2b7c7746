"""Declare the keys of export."""

from typing import Annotated

from imagenet_ddp.config.schema.run import TrainedConfig
from imagenet_ddp.config.validators import Example, choice, integer, matching, number

# the rule of huggingface_hub's validate_repo_id
_REPOSITORY = matching(
    r"(?a)hf://(?!.*(?:--|\.\.|\.git$))\w(?:[\w.-]*\w)?/\w(?:[\w.-]{0,94}\w)?",
    "hf://OWNER/NAME, a repository of the hub",
)
_LICENSE = matching(r"[\w.+-]+", "a licence's identifier")


class ExportConfig(TrainedConfig):
    format: Annotated[
        str | None,
        "onnx, onnx_fp16 (half the size), openvino, torch_export (.pt2), safetensors (weights only), or html (a page "
        "that classifies pictures in a browser); null: onnx, with push safetensors.",
    ] = None
    out: Annotated[
        str | None,
        Example("model.onnx"),
        "File to write; null: export/model.* in the run folder, with push in export/hub/.",
    ] = None
    push: Annotated[
        str | None,
        _REPOSITORY,
        Example("hf://OWNER/NAME"),
        "Repository of the Hugging Face hub to upload the file, config.json and the model card to.",
    ] = None
    preprocessing: Annotated[
        str | None,
        choice("inside", "normalise", "outside"),
        Example("normalise"),
        "Steps in the exported graph: inside (null), normalise or outside; see docs/export.md.",
    ] = None
    batch_size: Annotated[int | None, integer(1), Example("8"), "Fixed batch size of the model; null: any."] = None
    images: Annotated[str | None, Example("FOLDER"), "Images for the comparison; null: the validation images."] = None
    num_images: Annotated[int, integer(1), "Number of images for the comparison."] = 256
    max_difference: Annotated[
        float | None,
        number(above=0),
        Example("0.01"),
        "Largest difference of probabilities; null: 0.02 for onnx_fp16, 0.01 for html or a resizing onnx, else 0.001.",
    ] = None
    card: Annotated[bool, "Write the model card README.md and the program classify.py beside the file."] = True
    license: Annotated[str | None, _LICENSE, Example("apache-2.0"), "Licence to state in the model card."] = None
    overwrite: Annotated[bool, "Replace an existing file and the model card of an earlier export."] = False
