"""A timer interrupts training; a handler of the script's own stops it."""
import signal
import torch
from training import batches, digest, small, train

signals = []
signal.signal(signal.SIGALRM, lambda number, frame: signals.append(number))
signal.signal(signal.SIGUSR1, lambda number, frame: print("usr1", number))
model = small()
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
train(model)
signal.raise_signal(signal.SIGUSR1)
while len(signals) < 3:
    signal.pause()
signal.setitimer(signal.ITIMER_REAL, 0)
print(set(signals), signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.getsignal(signal.SIGTERM))
print(signal.pthread_sigmask(signal.SIG_BLOCK, []), digest(model))
