"""Signals while a loop runs."""

import signal

import pytest

from truestep.run.train import interrupt
from truestep.run.train.interrupt import Interrupt


def test_signals_in_quick_succession_are_one_and_a_later_one_acts(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr(interrupt.time, "monotonic", lambda: now_s[0])
    taken = Interrupt()
    taken.install()
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)
    assert taken.received == signal.SIGINT
    now_s[0] += 2.0
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert taken.received is None
