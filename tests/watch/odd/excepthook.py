"""Hooks for errors that nobody catches, and for those that cannot be raised."""
import sys, traceback
from training import small, train

class Shouting:
    def __del__(self):
        raise ValueError("in __del__")

def hook(kind, value, trace):
    print(kind.__name__, value, [item.name for item in traceback.extract_tb(trace)], sys.last_value is value)
    print(value.__notes__)

sys.unraisablehook = lambda info: print("unraisable", info.exc_value, info.err_msg)
sys.excepthook = hook
model = small()
Shouting()
def fail(*_):
    error = RuntimeError("no")
    error.add_note("a note")
    raise error
model[0].register_forward_hook(fail)
train(model)
