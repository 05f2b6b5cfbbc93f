"""The script forks: a child trains on and leaves like any process, the parent waits."""
import atexit, os, sys
from training import digest, small, train

atexit.register(lambda: print("bye", os.getpid() == parent, flush=True))
parent = os.getpid()
model = small()
train(model)
sys.stdout.flush()
pid = os.fork()
if not pid:
    train(model)
    print("child", digest(model))
    sys.exit(5)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
train(model)
print("parent", digest(model))
