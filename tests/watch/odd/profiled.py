"""Profilers: how often the script's own functions are called, and that a profile can be taken."""
# slow: the profiler takes a while
import cProfile, os, pstats, tracemalloc, faulthandler
import torch
from training import digest, small, train

model = small()
profile = cProfile.Profile()
profile.runcall(train, model)
own = {key[2]: value[:2] for key, value in pstats.Stats(profile).stats.items() if key[0].endswith(("script.py", "training.py"))}
print(sorted(own.items()), [value[0] for key, value in pstats.Stats(profile).stats.items() if key[2] == "_call_impl"])
tracemalloc.start()
train(model)
print(tracemalloc.is_tracing(), tracemalloc.get_traceback_limit())
tracemalloc.stop()
faulthandler.enable(open("faults.txt", "w"))
copy, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
os.dup2(nothing, 2)  # it says when it began
with torch.profiler.profile(with_stack=True, record_shapes=True) as profile:
    train(model)
os.dup2(copy, 2)
print(faulthandler.is_enabled(), sorted({item.key for item in profile.key_averages()} & {"aten::linear", "aten::addmm"}), digest(model))
