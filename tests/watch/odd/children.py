"""The script counts the ends of its children by signal, and by the descriptor that signals wake."""
import os, signal, time
import torch
from training import digest, small, train

ended = []
signal.signal(signal.SIGCHLD, lambda number, frame: ended.append(number))
reading, writing = os.pipe2(os.O_NONBLOCK)
signal.set_wakeup_fd(writing)
model = small()
for _ in range(2):
    train(model)
    pid = os.fork()
    if not pid:
        os._exit(3)
    print(os.waitstatus_to_exitcode(os.waitpid(-1, 0)[1]))
time.sleep(0.05)
print(len(ended), os.read(reading, 100))
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError as error:
    print(error)
print(digest(model))
