"""Make docs/check.png, the head of a page of prepare=check and its near-copies, from photographs that anyone may use.

    uv run --with scikit-image python scripts/check_picture.py WORK OUT.png

Cuts each of four photographs of scikit-image into nine, a class each, and puts among them what a check finds: copies, a
dark photograph, a blurred one, and three in the folder of another class. Runs the check with the options that follow,
and takes a picture of its page in Chromium.
"""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import skimage.data  # pyright: ignore[reportMissingImports]
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

# function of skimage.data -> class; its docstring names the photographer and the licence
PHOTOGRAPHS = {"chelsea": "cat", "coffee": "coffee", "hubble_deep_field": "galaxies", "rocket": "rocket"}
WIDTH, HEIGHT = 1080, 872  # pixels


def write_photographs(root: Path) -> None:
    for function, label in PHOTOGRAPHS.items():
        whole = Image.fromarray(getattr(skimage.data, function)())
        (root / label).mkdir(parents=True)
        width, height = whole.width // 3, whole.height // 3
        for number in range(9):
            x, y = number % 3 * width, number // 3 * height
            whole.crop((x, y, x + width, y + height)).save(root / label / f"IMG_{number:04}.jpg", quality=92)

    def change(place: str, new: str, function: Callable[[Image.Image], Image.Image]) -> None:
        function(Image.open(root / place)).save(root / new, quality=92)

    change("cat/IMG_0004.jpg", "cat/IMG_0004 (2).jpg", ImageOps.mirror)
    change("coffee/IMG_0004.jpg", "coffee/small.jpg", lambda image: image.reduce(2))
    change("galaxies/IMG_0004.jpg", "galaxies/bright.jpg", lambda image: ImageEnhance.Brightness(image).enhance(1.5))
    change("coffee/IMG_0006.jpg", "coffee/IMG_0006.jpg", lambda image: ImageEnhance.Brightness(image).enhance(0.15))
    change("rocket/IMG_0004.jpg", "rocket/IMG_0004.jpg", lambda image: image.filter(ImageFilter.GaussianBlur(8)))
    for label, other in (("coffee", "cat"), ("cat", "rocket"), ("galaxies", "coffee")):
        (root / label / "IMG_0001.jpg").rename(root / other / "IMG_0010.jpg")


def main(work: Path, picture: Path, *options: str) -> None:
    work.mkdir(parents=True)
    write_photographs(work / "photos")
    words = [sys.executable, "-m", "imagenet_ddp.prepare", "prepare=check", "experiment=own_photos", "data.root=photos"]
    subprocess.run([*words, "out=checked", *options], cwd=work, check=False)  # 1: it has found faults
    page = (work / "checked/check.html").read_text()
    hidden = "nav, .note, section:not(#near_copies) { display: none; }"
    (work / "page.html").write_text(page.replace("</style>", f"{hidden}</style>", 1))
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    words = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={work}/p"]
    words += [f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={work}/page.png", f"file://{work}/page.html"]
    subprocess.run(words, check=True)
    with Image.open(work / "page.png") as page:
        page.convert("RGB").quantize(200, dither=Image.Dither.NONE).save(picture, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]), *sys.argv[3:])
