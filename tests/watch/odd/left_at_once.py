"""The script leaves by os._exit: nothing is flushed, nothing is called."""
import atexit, os
from training import digest, small, train

atexit.register(print, "never")
model = small()
train(model)
print(digest(model), flush=True)
print("lost")
os._exit(9)
