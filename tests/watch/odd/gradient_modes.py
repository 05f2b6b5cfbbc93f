"""Inference mode, no_grad as decorator and context, forward-mode gradients."""
import torch
from torch.autograd import forward_ad
from training import batches, digest, small, train

@torch.no_grad()
def evaluate():
    model.eval()
    total = sum(model(x).sum().item() for x, _ in batches(3))
    model.train()
    return total

@torch.inference_mode()
def infer():
    for x, _ in batches(2):
        yield model(x).is_inference(), torch.is_inference_mode_enabled()

model = small()
train(model, num=3)
print(evaluate(), [*infer()], torch.is_grad_enabled())
with torch.inference_mode():
    x, _ = next(iter(batches()))
    out = model(x)
try:
    model(out[:, :1].expand(8, 4) * x).sum().backward()
except RuntimeError as error:
    print(error)
with forward_ad.dual_level():
    dual = forward_ad.make_dual(torch.ones(2, 4), torch.full((2, 4), 0.5))
    print(forward_ad.unpack_dual(model(dual)).tangent.sum().item())
torch.set_grad_enabled(False)
print(model(torch.ones(2, 4)).requires_grad)
torch.set_grad_enabled(True)
train(model)
print(digest(model))
