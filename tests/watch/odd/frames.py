"""All frames that are on the stack inside of a forward pass, and in a hook of a backward pass."""
# ours: frames of wrappers are on the stack
import sys
import torch
from training import small, train

class Looking(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = small()
    def forward(self, x):
        show()
        out = self.inner(x)
        out.register_hook(lambda gradient: show())
        return out

def show():
    frame = sys._getframe(1)
    while frame.f_code.co_name != "<module>":
        print(frame.f_code.co_filename, frame.f_code.co_name, frame.f_lineno if "script" in frame.f_code.co_filename else "")
        frame = frame.f_back

train(Looking())
