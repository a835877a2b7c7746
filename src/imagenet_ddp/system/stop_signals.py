"""The signals that ask a run to stop."""

import signal

# A stop and a later restart. SLURM sends one of them some time before the time limit (sbatch --signal=USR2@120).
RESTART_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, *RESTART_SIGNALS, signal.SIGHUP)
