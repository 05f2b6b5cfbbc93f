"""Spawned processes, and those of a fork server: `__main__` is imported there once more."""
import multiprocessing, sys

class Local:
    value = 5

def work(local, pipe):
    pipe.send((local.value, __name__, type(local).__module__, sys.argv[1:], "torch" in sys.modules))

if __name__ == "__main__":
    from training import digest, small, train
    model = small()
    train(model, num=4)
    for how in ("spawn", "forkserver"):
        context = multiprocessing.get_context(how)
        here, there = context.Pipe()
        process = context.Process(target=work, args=(Local(), there))
        process.start()
        print(how, here.recv())
        process.join()
        print(process.exitcode)
    train(model)
    print(digest(model))
