"""A tensor class that draws whenever torch is called, as a simulated noisy device would."""
import torch, hashlib
torch.manual_seed(0)
class Noisy(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        torch.rand(1)
        return super().__torch_function__(func, types, args, kwargs or {})
m = torch.nn.Linear(4, 1); o = torch.optim.SGD(m.parameters(), lr=.1)
for _ in range(5):
    l = m(torch.randn(8, 4).as_subclass(Noisy)).pow(2).mean(); o.zero_grad(); l.backward(); o.step()
print(hashlib.sha256(m.weight.detach().numpy().tobytes()).hexdigest()[:12])
