"""The script ends itself in the middle of a backward pass, with an exit code."""
import sys
from training import batches, small, train

model, calls = small(), []
def leave(gradient):
    calls.append(1)
    if len(calls) == 4:
        print("leaving")
        sys.exit(41)
model[0].weight.register_hook(leave)
train(model)
