"""torch's global settings: default device, dtype, deterministic algorithms, printing, generators."""
import torch
from training import digest, small, train

torch.use_deterministic_algorithms(True)
torch.set_default_dtype(torch.float64)
model = small()
given = [(torch.ones(8, 4, dtype=torch.float64), torch.zeros(8, dtype=torch.int64))] * 9
train(model, given=given)
with torch.device("meta"):
    print(torch.ones(2).device, small()(torch.ones(1, 4)).device)
torch.set_default_device("meta")
train(model, given=given)
print(torch.get_default_device(), torch.ones(1).device)
torch.set_default_device(None)
torch.set_printoptions(precision=2)
own = torch.Generator().manual_seed(1)
with torch.random.fork_rng():
    torch.manual_seed(99)
    train(model, given=given)
state = torch.get_rng_state()
torch.rand(3, generator=own)
train(model, given=given)
torch.set_rng_state(state)
print(torch.rand(2), own.initial_seed(), torch.initial_seed(), own.get_state().sum().item(), digest(model))
