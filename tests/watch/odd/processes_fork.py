"""Forked processes of multiprocessing that train, and a queue."""
import multiprocessing
from training import digest, small, train

def work(seed, queue):
    model = small()
    train(model, num=4)
    queue.put((seed, multiprocessing.current_process().name, digest(model)))

context = multiprocessing.get_context("fork")
model = small()
train(model)
queue = context.Queue()
processes = [context.Process(target=work, args=(seed, queue), name=f"p{seed}") for seed in range(2)]
for process in processes:
    process.start()
print(sorted(queue.get() for _ in processes))
for process in processes:
    process.join()
    print(process.exitcode)
print(digest(model), multiprocessing.active_children())
