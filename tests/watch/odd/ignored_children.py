"""Children whose ends are ignored: the system reaps them."""
import os, signal
from training import digest, small, train

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
model = small()
train(model)
print(signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN, digest(model))
