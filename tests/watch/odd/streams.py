"""Standard output by all ways: buffered, unbuffered, redirected, replaced, moved to a file and back."""
import contextlib, io, os, sys
from training import digest, small, train

model = small()
print("no newline", end="")
train(model, num=4)
sys.stdout.buffer.write(b" bytes\n")
sys.stdout.flush()
os.write(1, b"past the buffer\n")
frozen = io.StringIO()
with contextlib.redirect_stdout(frozen), contextlib.redirect_stderr(frozen):
    print("held")
    train(model)
print(repr(frozen.getvalue()), flush=True)
copy = os.dup(1)
with open("moved.txt", "w") as file:
    os.dup2(file.fileno(), 1)
    print("moved")
    train(model)
    sys.stdout.flush()
    os.dup2(copy, 1)
os.close(copy)

class Loud(io.TextIOBase):
    def write(self, text): os.write(2, text.upper().encode()); return len(text)

old, sys.stdout = sys.stdout, Loud()
print("loud")
train(model)
sys.stdout = old
sys.stdout.reconfigure(line_buffering=True)
print(digest(model), end="")
