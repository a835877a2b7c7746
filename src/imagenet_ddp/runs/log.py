"""Log a run. Rank 0 writes to the screen, and each rank writes to its own file in the run folder."""

import contextlib
import logging
import sys
import time
import warnings
from pathlib import Path
from typing import IO, TYPE_CHECKING

from imagenet_ddp.system import console
from imagenet_ddp.system.files import open_to_append
from imagenet_ddp.system.text import for_terminal

if TYPE_CHECKING:  # imported only to draw on a terminal, because the import takes a tenth of a second
    from rich.console import RenderableType
    from rich.live import Live

# Warnings that do not apply here, each with the reason.
HARMLESS = (
    "does not have many workers",  # choose_num_workers derives the number from the CPU cores
    "smaller than the logging interval",  # Progress and TrainLog apply the interval themselves
    "sync_dist=True",  # the logged values are already sums over all ranks
    "Checkpoint directory",  # a resumed run continues in its folder
    "The ``compute`` method of metric",  # a rank without validation images contributes zeros to the sum
    "The `srun` command is available",  # distributed/launchers/slurm.py decides whether it is needed
    "ended before the epoch ended and your dataloader is not resumable",  # the sampler starts at the next image
)

# Loggers whose messages an option requests: trainer.profiler, trainer.enable_model_summary.
REQUESTED = ("lightning.pytorch.profilers", "lightning.pytorch.callbacks.model_summary")


class Log:
    """The log of one rank. say() writes a line to the screen, on rank 0 only, and to the file of the rank; note()
    writes it to the file only.

    folder: folder of the file rank<k>.log; None: no file. stream: output of rank 0; None: standard output.
    """

    def __init__(self, folder: Path | None, rank: int, stream: IO[str] | None = None):
        self._stream = (stream or sys.stdout) if rank == 0 else None
        self._is_stdout = stream is None
        self._file = None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            # backslashreplace, because file names in a line need not be valid text
            self._file = open_to_append(folder / f"rank{rank}.log")
        self.is_terminal = self._stream is not None and self._stream.isatty()
        self.has_other_bar = False  # true while a progress bar of Lightning draws on the same screen
        self._live: Live | None = None

    def say(self, line: str, *, whole: bool = False, on_screen: str | None = None) -> None:
        """Print a line, and write it to the file. whole: do not wrap the line on a terminal, so that it can be copied.
        on_screen: text that a terminal shows instead of the line, without wrapping; it may have several lines."""
        line = for_terminal(line)
        if self._stream is not None:
            stream = self._stream
            try:
                console.erase_drawn()
                if self.has_other_bar:  # on a terminal, the bar is erased, and redrawn below the line
                    stream = sys.stdout if self._is_stdout else stream  # rich replaces sys.stdout during a live view
                    stream.write("\r\x1b[K" if self.is_terminal else "\n")
                encoding = getattr(self._stream, "encoding", None) or "utf-8"
                text = on_screen if on_screen is not None and self.is_terminal else line
                whole = whole or text is on_screen
                plain = text.encode(encoding, "backslashreplace").decode(encoding)
                print(plain if whole else console.fit_to_terminal(plain, self._stream), file=stream, flush=True)
            except OSError:
                self._lose_stream()
        self.note(line)

    def note(self, line: str) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # a full disk is reported when a checkpoint is written
                print(time.strftime("%Y-%m-%d %H:%M:%S"), for_terminal(line), file=self._file, flush=True)

    def draw(self, view: "RenderableType | None") -> None:
        """Draw a view below all lines on a terminal, replacing the previous view; None erases it. Does nothing if the
        output is not a terminal."""
        if not self.is_terminal:
            return
        try:
            if view is None:
                self._erase()
            else:
                self._redraw(view)
        except OSError:
            self._lose_stream()

    def _erase(self) -> None:
        live, self._live = self._live, None  # another thread's warning may erase it, too
        if live is not None:
            live.stop()

    def _redraw(self, view: "RenderableType") -> None:
        live = self._live
        if live is None:
            from rich.console import Console
            from rich.live import Live

            screen = Console(file=self._stream)
            live = self._live = Live(console=screen, auto_refresh=False, transient=True, redirect_stdout=False,
                                     redirect_stderr=False)  # fmt: skip
            live.start()
            screen.show_cursor(True)  # rich hides the cursor, and a killed process would leave it hidden
        console.drawn(self._erase)
        from rich.text import Text  # in a plain string, rich would interpret [words in brackets] as markup

        live.update(Text(view) if isinstance(view, str) else view, refresh=True)

    def _lose_stream(self) -> None:
        """Continue without a screen: the program that reads the output has ended (| head), or the terminal was closed,
        which the worker processes learn of before the signal SIGHUP that will stop the run."""
        if self._stream is not None:
            console.discard_output(self._stream)
        self._stream, self._live, self.is_terminal = None, None, False

    def capture_libraries(self) -> None:
        """Send Lightning's log and all warnings to this log. What Lightning logs as a warning or an error goes to the
        file only, each Python warning goes once to the screen and the file, and tables requested by an option go to
        both."""
        for name in ("lightning", "lightning.pytorch", "lightning.fabric", "pytorch_lightning"):
            logger = logging.getLogger(name)
            logger.handlers = [_ToLog(self)]
            logger.propagate = False
        shown: set[str] = set()

        def show(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: object) -> None:
            text = " ".join(str(message).split())
            # deprecation warnings concern developers of libraries, not the user
            is_deprecation = issubclass(category, DeprecationWarning | FutureWarning)
            if is_deprecation or any(part in text for part in HARMLESS) or text in shown:
                return
            shown.add(text)
            self.say(f"Warning: {text}")

        warnings.showwarning = show  # type: ignore[assignment]

    def close(self) -> None:
        self.draw(None)
        if self._file is not None:
            with contextlib.suppress(OSError):  # it tries again to write what a full disk has refused
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
        if record.levelno >= logging.WARNING:  # the rest is advice, and lines such as "TPU available: False"
            self._log.note(" ".join(record.getMessage().split()))
