"""The signals that ask a run to stop."""

import signal
from collections.abc import Sequence

# A stop and a later restart. SLURM sends one of them some time before the time limit (sbatch --signal=USR2@120).
RESTART_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, *RESTART_SIGNALS, signal.SIGHUP)
# SLURM signals every process of a step, a terminal those in the foreground, and parents forward signals to their
# children, so one request may arrive twice.
DUPLICATE_S = 0.5


def respected(numbers: Sequence[int]) -> list[int]:
    """Return these signals without SIGHUP, of a closed terminal, if this process ignores it, as nohup arranges for it
    and its children."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in numbers if number != signal.SIGHUP or not ignored]
