"""torch.jit: what is scripted, what is traced, and how it trains."""
import warnings
import torch
from training import batches, digest, small, train
warnings.simplefilter("ignore", DeprecationWarning)
warnings.simplefilter("ignore", FutureWarning)

class Branching(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = small()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return self.inner(x)
        return self.inner(-x)

model = torch.jit.script(Branching())
print(model.code)
train(model)
x, _ = next(iter(batches()))
traced = torch.jit.trace(Branching().eval(), x)
print(traced.inlined_graph)
train(traced)
print(digest(model), digest(traced))
