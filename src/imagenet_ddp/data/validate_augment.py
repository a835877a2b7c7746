"""Find augmentation keys that contradict each other. This module does not import
torch."""

import math
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from imagenet_ddp.config.validators import integer
from imagenet_ddp.system.text import install


def validate_augment(data: Mapping[str, Any]) -> list[str]:
    """Return a message for each contradiction. Values of the wrong type are reported elsewhere."""
    found = []
    if str(data["policy"]).startswith("rand-") and find_spec("timm") is None:
        found.append(
            f"data.policy={data['policy']} needs the package timm, which is not installed. Hint: run "
            f"`{install('timm')}`, or set data.policy=randaugment."
        )
    magnitude = data["policy_magnitude"]
    if data["policy"] == "augmix" and integer(0, 30).accepts(magnitude) and not 1 <= magnitude <= 10:
        found.append(
            f"data.policy_magnitude must be from 1 to 10 for augmix, got {magnitude}. "
            "Hint: set data.policy_magnitude=null."
        )
    sizes = (data["train_size"] or data["image_size"], data["progressive_start"])
    smallest = min((size for size in sizes if integer(1).accepts(size)), default=math.inf)
    for key, is_used in (("pad", data["augment"] == "pad_crop"), ("cutout", True)):
        if is_used and integer(0).accepts(data[key]) and data[key] >= smallest:
            found.append(
                f"data.{key} must be less than the {smallest} pixels of the smallest training image, got {data[key]}. "
                f"Hint: set data.{key}={smallest // 8}."
            )
    return found
