"""Know the nets of timm by its source files, because importing timm imports torch, which takes seconds."""

import functools
import importlib.util
import re
from collections.abc import Iterable
from difflib import SequenceMatcher
from pathlib import Path

# Names that only timm has, for where it is not installed: with the tag of their weights, or of the usual families.
_OF_TIMM = re.compile(
    r"\w+\.\w+|tf_\w+|\w+_(patch|window)\d\w*|resnet\d+[a-z]\w*|"
    r"(efficientnet(_lite|_e[slm]|v2)|convnextv2|mobilenetv\d|mobilenet_\d|efficientvit|tiny_vit|fastvit|deit|eva)\w*"
)


@functools.cache
def names() -> frozenset[str]:
    """Return the nets that the installed timm can make, without tags of weights; empty if it is not installed."""
    spec, found = importlib.util.find_spec("timm"), set[str]()
    if spec is None or spec.origin is None:
        return frozenset()
    for file in (Path(spec.origin).parent / "models").glob("*.py"):
        text = file.read_text(encoding="utf-8")
        found.update(re.findall(r"^@register_model\s+def (\w+)", text, re.MULTILINE))
        earlier = re.findall(r"^register_model_deprecations\(__name__, \{(.*?)\}\)", text, re.DOTALL | re.MULTILINE)
        found.update(re.findall(r"""['"](\w+)['"]\s*:""", "".join(earlier)))
    return frozenset(found)


def is_of_timm(name: str) -> bool:
    """Return whether this is the name of a net of timm, which may end in the tag of its weights."""
    return name.partition(".")[0] in names() if names() else _OF_TIMM.fullmatch(name) is not None


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Return the known names that a wrong one may mean, the likeliest first: those that begin with it, then those that
    have most of its characters."""
    bare, ratios = name.lower().partition(".")[0], dict[str, float]()
    matcher = SequenceMatcher(b=bare)  # of which b is prepared once
    for each in known:
        matcher.set_seq1(each)
        if each.startswith(bare) or (matcher.quick_ratio() > 0.6 and matcher.ratio() > 0.6):
            ratios[each] = matcher.ratio() + each.startswith(bare)
    return sorted(ratios, key=lambda each: (-ratios[each], each))[:count]
