"""Serve a web page that classifies the pictures dropped on it: python -m imagenet_ddp.demo checkpoint=PATH."""

import contextlib
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from imagenet_ddp.cli import command
from imagenet_ddp.config.schema.predict import DemoConfig
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.launch.stored_config import resolved_config
from imagenet_ddp.mistakes import Mistake, meant
from imagenet_ddp.system.console import Printable, print_message
from imagenet_ddp.system.packages import missing_package
from imagenet_ddp.system.text import class_list, count_noun
from imagenet_ddp.system.text_table import escape_markdown
from imagenet_ddp.use.open_predictor import open_predictor
from imagenet_ddp.use.prediction_words import in_words, sure_classes

if TYPE_CHECKING:
    from imagenet_ddp.use.predictor import Predictor, Result

MAX_FILE_SIZE = "20mb"
MAX_PIXELS = 40_000_000  # of an uploaded picture, which takes 3 bytes for each of them several times
CHECK_S, KEEP_S = 60, 300  # how often uploaded pictures are looked for, and how old they must be to be deleted
PASSWORD = "IMAGENET_DDP_DEMO_PASSWORD"  # environment variable; a command line and a config are seen by others
TITLE = "Image classification"
MAX_WAITING = 16  # requests in the queue; further requests are refused


def main() -> None:
    with command.run_command("demo"), TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        request = command.request("demo")
        os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # send nothing from this machine
        # the default, /tmp/gradio, belongs to the first user who started Gradio, and keeps the pictures
        os.environ.setdefault("GRADIO_TEMP_DIR", folder)
        if missing := missing_package("demo", "gradio"):
            raise ConfigError(missing)
        import gradio

        config = resolved_config(request, os.environ, DemoConfig)
        predictor = open_predictor(config)
        page = make_page(gradio, predictor, has_several=config.data.labels == "several")
        theme = gradio.themes.Base(font=["system-ui", "sans-serif"], font_mono=["monospace"])  # no download
        print_message(f"http://{config.host}:{config.port}  (press Ctrl-C to stop)", sys.stdout)
        auth = None
        if password := os.environ.get(PASSWORD):
            auth = ("user", password)
        elif config.host not in ("127.0.0.1", "localhost", "::1"):
            print_message(
                f"host={config.host}: everybody who reaches this machine can open the page and upload pictures. Hint: "
                f"put a password into the environment variable {PASSWORD}; the page then asks for it, and for the name "
                "user."
            )
        try:
            with contextlib.redirect_stderr(Printable(sys.stderr)):  # of tracebacks with names that a visitor sends
                page.queue(max_size=MAX_WAITING).launch(
                    server_name=config.host, server_port=config.port, max_file_size=MAX_FILE_SIZE, share=False,
                    auth=auth, theme=theme, footer_links=[], quiet=True,
                )  # fmt: skip
        except OSError as error:
            what = f"host={config.host} port={config.port} cannot be opened"
            hint = "host=HOST to 127.0.0.1, 0.0.0.0 or an IPv4 address of this machine"
            raise ConfigError(Mistake(what, ("host", "port"), (meant(f"port={config.port + 1}"),), hint)) from error


def too_large(path: str) -> str:
    """Return why an uploaded picture is too large to be decoded, from its header, or ""."""
    from PIL import Image

    from imagenet_ddp.data.decoding.heic import heic_formats
    from imagenet_ddp.data.decoding.pixel_conversion import FORMATS

    try:
        with Path(path).open("rb") as file, warnings.catch_warnings(action="ignore"):
            formats = (*FORMATS, *heic_formats(file.read(12)))
            with Image.open(file, formats=formats) as image:  # which begins at the start of the file
                width, height = image.size
    except Exception:  # the predictor says what is wrong with it
        return ""
    return f"it has {width:,} × {height:,} pixels, more than {MAX_PIXELS:,}" if width * height > MAX_PIXELS else ""


def beside_classes(result: "Result", labels: Sequence[str], *, has_several: bool) -> str:
    """Return in Markdown what predict says of a picture that is in doubt, or has several labels, else ""."""
    words = in_words(result, labels, has_several=has_several)
    if sure_classes(result, has_several=has_several):
        return escape_markdown(words) if has_several else ""
    return f"**{escape_markdown(words[0].upper() + words[1:])}**"


def make_page(gradio: Any, predictor: "Predictor", *, has_several: bool) -> Any:
    """Build the demo page, a gradio.Blocks. gradio: the imported module. has_several: images have several labels."""
    import torch

    from imagenet_ddp.data.decoding.errors import UnreadableImage
    from imagenet_ddp.models.class_activation import overlay

    explain = predictor.explain
    if explain is not None:
        try:
            explain([predictor.read.prepare(torch.zeros(3, 256, 256, dtype=torch.uint8))], [0])
        except ConfigError:  # no layer of this net has rows and columns
            explain = None

    def answer(path: str | None) -> tuple[Any, ...]:
        """Return (label -> probability of the top-5 classes, the picture overlaid with its activation map,
        beside_classes).

        The picture is returned unchanged if the net has no activation map. path: None returns nothing of these.
        """
        if path is None:
            return None, None, ""
        if reason := too_large(path):
            raise gradio.Error(f"This file cannot be used: {reason}.", print_exception=False)
        image = predictor.read(path)
        if isinstance(image, UnreadableImage):
            raise gradio.Error(f"This file cannot be used: {image.reason}.", print_exception=False)
        (result,) = predictor.predict([image], min(5, len(predictor.classes)))
        if result.reason:
            raise gradio.Error(f"This file cannot be used: {result.reason}.", print_exception=False)
        shown, top = image, result.top
        if explain is not None:
            (activation,) = explain([image], [top[0][0]])
            shown = overlay(image, activation)
        found = {predictor.labels[index]: share for index, share in top}
        said = beside_classes(result, predictor.labels, has_several=has_several)
        return found, shown.permute(1, 2, 0).numpy(), said

    looked_at = "What the net looked at" if explain is not None else "What the net saw"
    names = f"{count_noun(len(predictor.labels), 'class')}: {class_list(predictor.labels)}"
    # the title of the browser's tab is shown before a password is asked for
    with gradio.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(CHECK_S, KEEP_S)) as page:
        gradio.Markdown(f"# {escape_markdown(predictor.title)}\n{escape_markdown(names)}")
        with gradio.Row():
            picture = gradio.Image(type="filepath", label="Picture", sources=["upload", "clipboard"])
            # Pass on the uploaded file itself, so that a file which training refuses is refused here with the same
            # message. A subclass would do the same, but Gradio writes a file next to the module of a subclass.
            picture.preprocess = lambda payload: payload and payload.path
            with gradio.Column():
                words = gradio.Markdown()
                classes = gradio.Label(label="Classes", num_top_classes=5)
                seen = gradio.Image(label=looked_at, interactive=False)
        picture.change(answer, picture, [classes, seen, words], concurrency_limit=1)
    return page


if __name__ == "__main__":
    main()
