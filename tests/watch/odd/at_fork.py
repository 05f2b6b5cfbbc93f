"""The script is told of forks, and counts them."""
import os
from training import digest, small, train

calls = []
os.register_at_fork(
    before=lambda: calls.append("before"),
    after_in_parent=lambda: calls.append("parent"),
    after_in_child=lambda: os.write(1, b"child\n"),
)
model = small()
train(model)
print(calls, flush=True)
pid = os.fork()
if not pid:
    os._exit(0)
os.waitpid(pid, 0)
print(calls, digest(model))
