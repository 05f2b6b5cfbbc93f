"""Functions written in C as attributes of a class: they take no self, unlike functions of Python."""
import os, random, time
import numpy
import torch
from training import digest, small, train

class Tools:
    folder, clock, draw, ints, shuffle, entropy = os.listdir, time.time, random.random, random.getrandbits, random.shuffle, os.urandom
    rand, choice, threads, scan, environment, seed = numpy.random.rand, numpy.random.choice, torch.set_num_threads, os.scandir, os.getenv, random.seed
    normal, pid = numpy.random.normal, os.getpid

tools = Tools()
random.seed(1), numpy.random.seed(1)
order = list(range(5))
tools.shuffle(order), tools.threads(1)
print(sorted(name for name in tools.folder(".") if name.endswith(".py")), tools.draw(), tools.ints(8), tools.rand(), tools.choice(5), order)
print(tools.clock() > 1, len(tools.entropy(3)), sorted(item.name for item in tools.scan(".") if item.name.endswith(".py")), tools.normal())
print(tools.pid() == os.getpid(), repr(os.listdir)[:27], repr(random.random)[:27], repr(time.time)[:27])
model = small()
train(model)
print(digest(model))
