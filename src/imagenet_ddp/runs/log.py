"""Log a run: rank 0 to the screen, every rank to its own file in the run folder."""

import contextlib
import logging
import sys
import time
import warnings
from pathlib import Path
from typing import IO, TYPE_CHECKING

from imagenet_ddp.system import closed_pipe, console

if TYPE_CHECKING:  # imported where a terminal is drawn on: a tenth of a second
    from rich.console import RenderableType
    from rich.live import Live

# Warnings that do not apply here, each with the reason.
HARMLESS = (
    "does not have many workers",  # choose_num_workers decides by the cores
    "smaller than the logging interval",  # Progress and RunningMetrics follow it themselves
    "sync_dist=True",  # what is logged is already the sum over all ranks
    "Checkpoint directory",  # a resumed run continues in its folder
    "The ``compute`` method of metric",  # a rank without validation images brings zeros to the sum
    "The `srun` command is available",  # decided in distributed/launchers/slurm.py
    "ended before the epoch ended and your dataloader is not resumable",  # the sampler starts at the next image
)

# Loggers whose messages an option requests: trainer.profiler, trainer.enable_model_summary.
REQUESTED = ("lightning.pytorch.profilers", "lightning.pytorch.callbacks.model_summary")


class Log:
    """say() writes a line to rank 0's screen and to every rank's file; note() to the file only."""

    def __init__(self, folder: Path | None, rank: int, stream: IO[str] | None = None):
        self._stream = (stream or sys.stdout) if rank == 0 else None
        self._is_stdout = stream is None
        self._file = None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            # a file's name need not be text
            self._file = (folder / f"rank{rank}.log").open("a", encoding="utf-8", errors="backslashreplace")
        self.is_terminal = self._stream is not None and self._stream.isatty()
        self.has_other_bar = False  # while a progress bar of Lightning's draws on the same screen
        self._live: Live | None = None

    def say(self, line: str, *, whole: bool = False, on_screen: str | None = None) -> None:
        """Print a line, and write it to the log. whole: never wrap the line on a terminal, because it is to be copied.
        on_screen: shown on a terminal instead, as one line or several that are not wrapped."""
        if self._stream is not None:
            self.draw(None)
            stream = self._stream
            try:
                if self.has_other_bar:  # on a terminal it is erased, and redrawn below the line
                    stream = sys.stdout if self._is_stdout else stream  # rich replaces sys.stdout during a live view
                    stream.write("\r\x1b[K" if self.is_terminal else "\n")
                encoding = getattr(self._stream, "encoding", None) or "utf-8"
                text = on_screen if on_screen is not None and self.is_terminal else line
                whole = whole or text is on_screen
                plain = text.encode(encoding, "backslashreplace").decode(encoding)
                print(plain if whole else console.fit_to_terminal(plain, self._stream), file=stream, flush=True)
            except OSError:  # its reader has left (| head): the run continues
                closed_pipe.discard_output(self._stream)
                self._stream = None
        self.note(line)

    def note(self, line: str) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # a full disk is the checkpoint's to report
                print(time.strftime("%Y-%m-%d %H:%M:%S"), line, file=self._file, flush=True)

    def draw(self, view: "RenderableType | None") -> None:
        """Draw below all lines on a terminal, replacing what was drawn last; None erases it. Elsewhere do nothing."""
        if not self.is_terminal:
            return
        live = self._live  # another thread's warning may erase it in the meantime
        if view is None:
            self._live = None
            if live is not None:
                live.stop()
            return
        if live is None:
            from rich.console import Console
            from rich.live import Live

            console = Console(file=self._stream)
            live = self._live = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False,
                                     redirect_stderr=False)  # fmt: skip
            live.start()
            console.show_cursor(True)  # a killed process would leave the terminal without one
        from rich.text import Text  # in a string, rich takes [words in brackets] for its own tags

        live.update(Text(view) if isinstance(view, str) else view, refresh=True)

    def capture_libraries(self) -> None:
        """Send Lightning's messages and all warnings to this log: info to the file, each warning once to the screen,
        tables requested by an option to both."""
        for name in ("lightning", "lightning.pytorch", "lightning.fabric", "pytorch_lightning"):
            logger = logging.getLogger(name)
            logger.handlers = [_ToLog(self)]
            logger.propagate = False
        shown: set[str] = set()

        def show(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: object) -> None:
            text = " ".join(str(message).split())
            # for developers of libraries, not for the person who trains
            is_deprecation = issubclass(category, DeprecationWarning | FutureWarning)
            if is_deprecation or any(part in text for part in HARMLESS) or text in shown:
                return
            shown.add(text)
            self.say(f"Warning: {text}")

        warnings.showwarning = show  # type: ignore[assignment]

    def close(self) -> None:
        self.draw(None)
        if self._file is not None:
            self._file.close()
            self._file = None


class _ToLog(logging.Handler):
    def __init__(self, log: Log):
        super().__init__(logging.INFO)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith(REQUESTED):
            self._log.say(record.getMessage().strip("\n"))
            return
        text = " ".join(record.getMessage().split())
        if "Tip:" not in text and "was not set, defaulting" not in text:  # advertisements; a note at each save
            self._log.note(text)
