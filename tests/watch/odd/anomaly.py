"""Anomaly mode names the forward line of a backward pass that fails."""
# ours: frames of wrappers are on the stack that it prints
import warnings
import torch
from training import digest, small, train

def show(message, *_, **__):
    print(str(message)[str(message).find("File \"" + __file__):])

warnings.showwarning = show

model = small()
with torch.autograd.detect_anomaly():
    train(model, num=4)
    x = torch.zeros(3, requires_grad=True)
    try:
        (torch.sqrt(x) * model(torch.ones(3, 4))[:, 0]).sum().mul(0).backward()
    except RuntimeError as error:
        print(error)
print(torch.is_anomaly_enabled(), digest(model))
