"""sys.settrace and sys.setprofile: the script's own lines and calls are those that it sees alone."""
import sys
from training import digest, small, train

events = []

def trace(frame, event, value):
    if frame.f_code.co_filename.endswith(("script.py", "training.py")):
        events.append((event, frame.f_code.co_name, frame.f_lineno))
        return trace
    return None

def profile(frame, event, value):
    if frame.f_code.co_filename.endswith(("script.py", "training.py")):
        events.append((event, frame.f_code.co_name, getattr(value, "__name__", None)))

model = small()
sys.settrace(trace)
train(model)
print(sys.gettrace() is trace)
sys.settrace(None)
sys.setprofile(profile)
train(model)
print(sys.getprofile() is profile)
sys.setprofile(None)
print(len(events), *events, sep="\n")
