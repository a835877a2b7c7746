"""Make the pictures of pages: of prepare=check and predict, from photographs that anyone may use, and of report.

    uv run --extra timm --with scikit-image python scripts/pictures.py WORK docs \
        model=timm model.name=tf_efficientnet_lite0

Cuts each of four photographs of scikit-image into nine, a class each, trains on these, and classifies three whole
photographs and one of no class. Then it puts faults among the crops, such as some in the folder of another class, and
checks them. The options are for this training and the check. The report is of the first run of README. Each picture is
as wide as a phone, so that its text is read there, and is made for light and for dark.
"""

import base64
import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import skimage.data  # pyright: ignore[reportMissingImports]
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from helpers.browser import Browser  # pyright: ignore[reportMissingImports]

# function of skimage.data -> class; its docstring names the photographer and the licence
PHOTOGRAPHS = {"chelsea": "cat", "coffee": "coffee", "hubble_deep_field": "galaxies", "rocket": "rocket"}
NEW = "astronaut", "chelsea", "coffee", "rocket"
WIDTH, SCALE = 400, 2  # in CSS pixels, and pixels for each
HEIGHT, REPORT_HEIGHT = 530, 690  # two of the former stand beside each other in README, above its first command
# Of the check page: what to mend, without the size of the classes, which are small here, and the wrong labels.
CHECK = """
nav, details, .name, .note, .figures, .verdict > :not(:first-child), .verdict li:has([href="#classes"]),
section:not(#wrong_labels), #decisions { display: none !important; }
header h1 { font-size: 22px; } .verdict h2 { font-size: 17px; } .verdict li { font-size: 14px; line-height: 1.4; }
section { margin: 0; padding: 12px 0 0 !important; border: 0; } h2 { font-size: 17px; }
.gallery { margin-top: 8px; } .frame { aspect-ratio: 3 / 2 !important; }
"""
# Of the page of predict: the pictures, with two classes side by side.
RESULT = """
nav, footer, .name, .note, .figures, select, #next { display: none !important; }
header h1 { font-size: 22px; } h2 { font-size: 13px; white-space: nowrap; }
.parts section { padding-top: 14px !important; }
.parts { grid-template-columns: repeat(2, minmax(0, 1fr)); column-gap: 20px; }
.gallery { grid-template-columns: 1fr; margin-top: 6px; } .frame { aspect-ratio: 5 / 4 !important; }
"""
# Of the page of a run: its head, without the time, which depends on the machine, and the class recognised worst.
REPORT = """
nav, .note, .figures > :last-child { display: none; }
section { padding: 0 !important; }
"""


def photograph(function: str) -> Image.Image:
    return Image.fromarray(getattr(skimage.data, function)())


def write_crops(root: Path) -> None:
    for function, label in PHOTOGRAPHS.items():
        whole = photograph(function)
        (root / label).mkdir(parents=True)
        width, height = whole.width // 3, whole.height // 3
        for number in range(9):
            x, y = number % 3 * width, number // 3 * height
            whole.crop((x, y, x + width, y + height)).save(root / label / f"IMG_{number:04}.jpg", quality=92)


def add_faults(root: Path) -> None:
    def change(place: str, new: str, function: Callable[[Image.Image], Image.Image]) -> None:
        function(Image.open(root / place)).save(root / new, quality=92)

    change("cat/IMG_0001.jpg", "cat/IMG_0001 (2).jpg", ImageOps.mirror)
    change("coffee/IMG_0001.jpg", "coffee/small.jpg", lambda image: image.reduce(2))
    change("galaxies/IMG_0001.jpg", "galaxies/bright.jpg", lambda image: ImageEnhance.Brightness(image).enhance(1.5))
    change("coffee/IMG_0006.jpg", "coffee/IMG_0006.jpg", lambda image: ImageEnhance.Brightness(image).enhance(0.15))
    change("rocket/IMG_0004.jpg", "rocket/IMG_0004.jpg", lambda image: image.filter(ImageFilter.GaussianBlur(8)))
    for label, other in (("coffee", "cat"), ("cat", "rocket")):
        (root / label / "IMG_0004.jpg").rename(root / other / "IMG_0010.jpg")


def take(page: Path, style: str, picture: Path, profile: Path, height: int = HEIGHT) -> None:
    """Take a picture of the page, in this further style, as picture.png and picture-dark.png."""
    styled = page.with_suffix(".styled.html")
    styled.write_text(page.read_text(encoding="utf-8").replace("</style>", f"{style}</style>", 1), encoding="utf-8")
    for scheme, end in (("light", ""), ("dark", "-dark")):
        with Browser(profile / f"{picture.name}{end}") as browser:
            browser.resize(WIDTH, scheme=scheme)
            size = {"width": WIDTH, "height": height, "deviceScaleFactor": SCALE, "mobile": True}
            browser.call("Emulation.setDeviceMetricsOverride", **size)
            browser.call("Emulation.setScrollbarsHidden", hidden=True)
            browser.open(styled.as_uri())
            data = browser.call("Page.captureScreenshot", format="png")["data"]
        with Image.open(io.BytesIO(base64.b64decode(data))) as image:
            quantized = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
            quantized.save(picture.with_name(f"{picture.name}{end}.png"), optimize=True)


def main(work: Path, folder: Path, *options: str) -> None:
    def run(command: str, *words: str, check: bool = True) -> None:
        subprocess.run([sys.executable, "-m", f"imagenet_ddp.{command}", *words], cwd=work, check=check)

    write_crops(work / "photos")
    run("train", "experiment=probe", "data.root=photos", "hydra.run.dir=run", *options)
    (work / "new").mkdir()
    for function in NEW:
        photograph(function).save(work / f"new/{function}.jpg", quality=92)
    run("predict", "checkpoint=run", "images=new", "out=classes.html")
    add_faults(work / "photos")
    words = "prepare=check", "experiment=own_photos", "data.root=photos", "out=checked", *options
    run("prepare", *words, check=False)  # 1: it has found faults
    profile = work / "profile"
    profile.mkdir()
    take(work / "checked/check.html", CHECK, folder / "check", profile)
    take(work / "classes.html", RESULT, folder / "result", profile)
    run("train", "hydra.run.dir=shapes")
    run("report", "shapes")
    take(work / "shapes/report.html", REPORT, folder / "report", profile, REPORT_HEIGHT)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]), *sys.argv[3:])
