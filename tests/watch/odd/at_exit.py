"""Functions that are called at the end, and their order; one of them trains."""
import atexit
atexit.register(print, "registered before torch")
import threading
import torch
from training import digest, small, train

model = small()
atexit.register(print, "after torch")
atexit.register(lambda: print("trained", train(model) and digest(model)))
threading._register_atexit(print, "threads end")
train(model)
print("end", digest(model))
