"""The script replaces functions of the standard library by ones that count."""
import builtins, gc, io, json, os, random, select, sys, tempfile, threading, time
import torch
from training import digest, small, train

calls = []

def replace(owner, name):
    old = getattr(owner, name)
    def new(*args, **kwargs):
        calls.append(name)
        return old(*args, **kwargs)
    setattr(owner, name, new)

model = small()
for owner, names in {
    os: "kill getpid stat", builtins: "open print", gc: "disable enable collect", time: "perf_counter monotonic sleep",
    random: "seed random shuffle", threading: "Lock RLock Thread", io: "StringIO", tempfile: "mkdtemp mkstemp", os.path: "exists join",
}.items():
    for name in names.split():
        replace(owner, name)
train(model, num=70)
sys.stdout.write(f"{calls} {digest(model)}\n")
