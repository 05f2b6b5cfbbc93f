"""The garbage collector is off; what the script collects is its own, and nobody adds cycles."""
import gc
from training import digest, small, train

gc.collect()
gc.disable()
phases = []
gc.callbacks.append(lambda phase, info: phases.append((phase, info["generation"], info["uncollectable"])))

class Cycle:
    def __init__(self): self.own = self
    def __del__(self): print("gone")

model = small()
train(model)
Cycle()
print(gc.isenabled(), gc.get_threshold(), len(gc.callbacks), gc.get_debug(), gc.garbage)
gc.collect()
print(phases, gc.get_freeze_count(), digest(model))
