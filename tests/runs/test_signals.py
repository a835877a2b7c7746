import signal
from collections.abc import Callable
from contextlib import nullcontext

import pytest
from helpers.forked_commands import start_code

from imagenet_ddp.runs import signals
from imagenet_ddp.runs.signals import SignalExit, Signals, exit_on_signal, hold_signals, raise_on_signal


def test_a_held_signal_is_raised_when_the_block_ends():
    before = signal.getsignal(signal.SIGTERM)
    reached = []

    def act() -> None:
        with hold_signals():
            signal.raise_signal(signal.SIGTERM)
            reached.append("the end of the block")
        reached.append("what follows")

    with (
        pytest.raises(SignalExit, match=r"^Stopped by SIGTERM, with nothing to save yet\.$") as left,
        raise_on_signal(),
    ):
        act()
    assert left.value.code == 143
    assert reached == ["the end of the block"]
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("is_nohup", [False, True])
@pytest.mark.parametrize("install", [lambda: Signals().install(), exit_on_signal])
def test_a_hangup_counts_unless_nohup_ignores_it(install: Callable[[], object], is_nohup: bool):
    signal.signal(signal.SIGHUP, signal.SIG_IGN if is_nohup else signal.SIG_DFL)
    install()
    for block in (nullcontext, raise_on_signal, hold_signals):
        with block():
            assert (signal.getsignal(signal.SIGHUP) is signal.SIG_IGN) == is_nohup
    assert signal.getsignal(signal.SIGTERM) not in (signal.SIG_IGN, signal.SIG_DFL)


def test_a_duplicate_does_not_interrupt_the_exit(monkeypatch: pytest.MonkeyPatch):
    """A signal to the whole process group arrives twice if a parent such as uv forwards it, too."""
    exit_on_signal()
    with pytest.raises(SignalExit):
        signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGINT)
    monkeypatch.setattr(signals, "DUPLICATE_S", 0.0)
    with pytest.raises(SignalExit):  # a person who presses Ctrl-C again
        signal.raise_signal(signal.SIGINT)


def test_a_signal_during_the_exit_ends_it_without_a_traceback():
    command = start_code(
        "import atexit, os, signal, time\n"
        "from imagenet_ddp.runs.signals import exit_on_signal\n"
        "def clean_up():\n    time.sleep(0.6)\n    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(60)\n"
        "atexit.register(clean_up)\nexit_on_signal('stopped')\nos.kill(os.getpid(), signal.SIGTERM)\n"
    )
    assert (command.wait(), command.err) == (128 + signal.SIGINT, "stopped\n")
