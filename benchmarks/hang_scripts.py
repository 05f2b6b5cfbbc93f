"""Scripts that hang in known ways, and scripts that are only slow: for `hangs.py`.

In each script the line where the odd rank stands ends in `# odd`. `stalls()` marks the moment of the stall.
"""

from typing import NamedTuple

HEAD = """\
import datetime, os, signal, subprocess, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
import torch, torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

def stalls():
    with open(sys.argv[1], "w") as file:
        file.write(repr(time.time()))

torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
rank, size = dist.get_rank(), dist.get_world_size()
is_odd = rank == size - 1
model = nn.Linear(4, 2)

def train(step):
    model(torch.randn(3, 4)).sum().backward()
    for item in model.parameters():
        dist.all_reduce(item.grad)

"""


class Hang(NamedTuple):
    """A script that hangs: its body, the cause that is expected, and which rank is the odd one."""

    cause: str
    body: str
    odd: str = "last"
    """`last` or `first`."""
    is_failing: bool = False
    """Whether the backend notices, so that the script ends with an error that has to be explained."""


HANGS = {
    "uneven batches": Hang(
        "uneven batches",
        """
for step in range(4 if is_odd else 5):
    train(step)
stalls()
dist.barrier()  # odd
""",
    ),
    "uneven batches under DDP": Hang(
        "uneven batches",
        """
from torch.nn.parallel import DistributedDataParallel
parallel = DistributedDataParallel(model)
for step in range(4 if is_odd else 5):
    parallel(torch.randn(3, 4)).sum().backward()
stalls()
dist.barrier()  # odd
""",
    ),
    "a rank ends early": Hang(
        "uneven batches",
        """
for step in range(4 if is_odd else 5):
    train(step)
    stalls()
""",
        is_failing=True,
    ),
    "a barrier under if rank == 0": Hang(
        "rank branch",
        """
for step in range(5):
    train(step)
    if step == 3:
        stalls()
        if rank == 0:
            dist.barrier()  # odd
""",
        odd="first",
    ),
    "barrier in a checkpoint of rank 0": Hang(
        "rank branch",
        """
def save_checkpoint():
    stalls()
    dist.barrier()  # odd

for step in range(5):
    train(step)
    if step == 2 and rank == 0:
        save_checkpoint()
""",
        odd="first",
    ),
    "saved when its own metric improves": Hang(
        "branch",
        """
def save_checkpoint():
    stalls()
    dist.barrier()  # odd

best = 1.0
for step in range(5):
    train(step)
    score = 0.5 if is_odd and step == 3 else 2.0
    if score < best:
        save_checkpoint()
""",
    ),
    "an exception swallowed on one rank": Hang(
        "swallowed exception",
        """
for step in range(6):
    try:
        if is_odd and step == 2:
            raise ValueError("a bad sample")
        train(step)
    except ValueError:
        continue
stalls()
dist.barrier()  # odd
""",
    ),
    "one rank still evaluates": Hang(
        "evaluation",
        """
def evaluate(num_batches):
    for batch in range(num_batches):
        dist.all_reduce(torch.ones(1))  # odd

for epoch in range(2):
    for step in range(3):
        train(step)
    evaluate(3 if is_odd else 2)
    stalls()
    dist.barrier()
""",
    ),
    "collectives in another order": Hang(
        "order",
        """
def average():
    dist.all_reduce(torch.ones(6))

def share():
    dist.broadcast(torch.ones(5), src=0)  # odd

train(0)
stalls()
for call in [share, average] if is_odd else [average, share]:
    call()
""",
    ),
    "a lock taken twice": Hang(
        "lock",
        """
lock = threading.Lock()
for step in range(4):
    train(step)
    if is_odd and step == 2:
        stalls()
        lock.acquire()
        with lock:  # odd
            train(step)
""",
    ),
    "a breakpoint on one rank": Hang(
        "input",
        """
for step in range(4):
    train(step)
    if is_odd and step == 2:
        stalls()
        input("> ")  # odd
""",
    ),
    "a deadlocked loader worker": Hang(
        "loader",
        """
class Items(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        with lock:
            return torch.ones(4)

lock = threading.Lock()
for step in range(2):
    train(step)
if is_odd:
    lock.acquire()
stalls()
for batch in DataLoader(Items(), batch_size=2, num_workers=1):  # odd
    train(0)
""",
    ),
    "a stopped process": Hang(
        "stopped",
        """
for step in range(4):
    train(step)
stalls()
if is_odd:
    os.kill(os.getpid(), signal.SIGSTOP)
dist.all_reduce(torch.ones(2))
""",
    ),
    "a receive without a send": Hang(
        "pair",
        """
train(0)
stalls()
if is_odd:
    time.sleep(0.1)
    dist.recv(torch.ones(2), src=0)  # odd
dist.barrier()
""",
    ),
    "two groups in another order": Hang(
        "branch",
        """
one, two = dist.new_group(list(range(size))), dist.new_group(list(range(size)))
train(0)
stalls()
if is_odd:
    dist.all_reduce(torch.ones(2), group=two)  # odd
    dist.all_reduce(torch.ones(2), group=one)
else:
    dist.all_reduce(torch.ones(2), group=one)
    dist.all_reduce(torch.ones(2), group=two)
""",
    ),
    "a barrier of a subgroup under if": Hang(
        "branch",
        """
part = dist.new_group([0, size - 1])
train(0)
stalls()
if is_odd:
    dist.barrier(group=part)  # odd
dist.all_reduce(torch.ones(1))
""",
    ),
    "a mesh of two dimensions in another order": Hang(
        "branch",
        """
from torch.distributed.device_mesh import init_device_mesh
mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("data", "model"))
along, across = mesh.get_group("model"), dist.new_group()  # with two processes the first is that of all
train(0)
stalls()
if is_odd:
    dist.all_reduce(torch.ones(2), group=across)  # odd
    dist.all_reduce(torch.ones(2), group=along)
else:
    dist.all_reduce(torch.ones(2), group=along)
    dist.all_reduce(torch.ones(2), group=across)
""",
    ),
    "a sharded checkpoint on rank 0 only": Hang(
        "rank branch",
        """
import torch.distributed.checkpoint as dcp
for step in range(3):
    train(step)
    if step == 1 and rank == 0:
        stalls()
        dcp.save({"model": model.state_dict()}, checkpoint_id=sys.argv[1] + ".dcp")  # odd
""",
        odd="first",
    ),
    "a sharded model called under a condition": Hang(
        "branch",
        """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
for step in range(2):
    model(torch.randn(3, 4)).sum().backward()
stalls()
if is_odd:
    model(torch.randn(3, 4))  # odd
dist.barrier()
""",
    ),
    "a queue whose producer was killed": Hang(
        "queue",
        """
import multiprocessing

def produce(queue):
    os.kill(os.getpid(), signal.SIGKILL)

train(0)
if is_odd:
    queue = multiprocessing.get_context("fork").Queue()
    multiprocessing.get_context("fork").Process(target=produce, args=(queue,)).start()
    stalls()
    queue.get()  # odd
train(1)
""",
    ),
}

SLOW = {
    "sleeps": """
train(0)
if is_odd:
    time.sleep(14)
train(1)
""",
    "computes": """
train(0)
if is_odd:
    end_s = time.monotonic() + 14
    matrix = torch.randn(400, 400)
    while time.monotonic() < end_s:
        matrix = (matrix @ matrix).clamp(-1, 1)
train(1)
""",
    "one long operation": """
train(0)
if is_odd:
    end_s = time.monotonic() + 14
    while time.monotonic() < end_s:
        torch.randn(1500, 1500).svd()
train(1)
""",
    "waits for a slow loader": """
class Items(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        time.sleep(7 if is_odd else 0.1)
        return torch.ones(4)

for batch in DataLoader(Items(), batch_size=2, num_workers=1):
    train(0)
""",
    "saves slowly": """
train(0)
if rank == 0:
    with open(os.devnull, "wb") as file:
        for part in range(28):
            file.write(b"0" * 1000000)
            time.sleep(0.5)
dist.barrier()
""",
    "evaluates on rank 0": """
def evaluate():
    with torch.no_grad():
        end_s = time.monotonic() + 14
        while time.monotonic() < end_s:
            model(torch.randn(2000, 4)).sum().item()

train(0)
if rank == 0:
    evaluate()
dist.barrier()
train(1)
""",
    "waits for a program": """
train(0)
if is_odd:
    subprocess.run([sys.executable, "-I", "-S", "-c", "import time; time.sleep(14)"], check=True)
train(1)
""",
    "waits for a thread that downloads": """
train(0)
if is_odd:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(time.sleep, 14).result()
train(1)
""",
    "waits for an event with a timeout": """
train(0)
if is_odd:
    threading.Event().wait(14)
train(1)
""",
    "holds the interpreter": """
import re
train(0)
if is_odd:
    end_s = time.monotonic() + 14
    length = 20
    while time.monotonic() < end_s:  # one match takes seconds, and no other thread runs meanwhile
        begun_s = time.monotonic()
        re.match("(a+)+$", "a" * length + "b")
        length += time.monotonic() - begun_s < 3
train(1)
""",
    "one call without the interpreter": """
import hashlib
train(0)
if is_odd:
    begun_s = time.monotonic()
    hashlib.pbkdf2_hmac("sha256", b"word", b"salt", 200000)
    num = int(200000 * 14 / (time.monotonic() - begun_s))
    hashlib.pbkdf2_hmac("sha256", b"word", b"salt", num)
train(1)
""",
    "waits for a queue of a slow child": """
import multiprocessing

def produce(queue):
    time.sleep(14)
    queue.put(1)

train(0)
if is_odd:
    queue = multiprocessing.get_context("fork").Queue()
    multiprocessing.get_context("fork").Process(target=produce, args=(queue,)).start()
    queue.get()
train(1)
""",
    "waits for a lock of a sleeping thread": """
lock = threading.Lock()

def hold():
    with lock:
        time.sleep(14)

train(0)
if is_odd:
    threading.Thread(target=hold).start()
    time.sleep(0.2)
    with lock:
        pass
train(1)
""",
    "waits for a thread that threading does not know": """
import _thread

def hold(lock):
    time.sleep(14)
    lock.release()

train(0)
if is_odd:
    lock = threading.Lock()
    lock.acquire()
    _thread.start_new_thread(hold, (lock,))
    lock.acquire()
train(1)
""",
    "waits until an alarm": """
def ring(*_):
    raise TimeoutError

train(0)
if is_odd:
    signal.signal(signal.SIGALRM, ring)
    signal.alarm(14)
    lock = threading.Lock()
    lock.acquire()
    try:
        lock.acquire()
    except TimeoutError:
        pass
train(1)
""",
    "waits for a file lock": """
import fcntl
train(0)
with open(sys.argv[1] + ".lock", "w") as file:
    if rank == 0:
        fcntl.flock(file, fcntl.LOCK_EX)
    dist.barrier()
    if rank == 0:
        time.sleep(14)
    else:
        fcntl.flock(file, fcntl.LOCK_EX)
    fcntl.flock(file, fcntl.LOCK_UN)
train(1)
""",
    "reads a slow connection": """
import socket

def serve():
    time.sleep(14)
    server.send(b"data")

train(0)
if is_odd:
    client, server = socket.socketpair()
    threading.Thread(target=serve).start()
    client.recv(4)
train(1)
""",
    "accumulates on one rank": """
from torch.nn.parallel import DistributedDataParallel
parallel = DistributedDataParallel(model)
with parallel.no_sync():
    end_s = time.monotonic() + (14 if is_odd else 0)
    while time.monotonic() < end_s:
        parallel(torch.randn(3000, 4)).sum().backward()
parallel(torch.randn(3, 4)).sum().backward()
""",
    "a pipeline with a slow first stage": """
train(0)
if rank == 0:
    time.sleep(14)
    dist.send(torch.ones(3), dst=size - 1)
elif is_odd:
    dist.recv(torch.ones(3), src=0)
dist.barrier()
""",
    "waits for a key in the store": """
from torch.distributed.distributed_c10d import _get_default_store
store = _get_default_store()
train(0)
if rank == 0:
    time.sleep(14)
    store.set("ready", "yes")
elif is_odd:
    store.wait(["ready"])
train(1)
""",
}
