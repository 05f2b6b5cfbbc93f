"""Asks CUDA for all that scripts ask for; each answer is checked here."""

import pickle

import torch
from torch import nn

one = torch.ones(2)
ON_CPU = {
    ".cuda()": one.cuda(),
    ".cuda(0, True)": one.cuda(0, True),
    ".to": one.to("cuda"),
    ".to(index)": one.to(1),
    ".to(device, dtype)": one.to(torch.device("cuda", 1), torch.float16),
    ".to(device=)": one.to(device="cuda:0"),
    ".type": one.type("torch.cuda.DoubleTensor"),
    ".new_zeros": one.new_zeros(2, device="cuda"),
    "Module.to(index)": nn.Linear(2, 2).to(0).weight,
    "Module.cuda": nn.Linear(2, 2).cuda().weight,
    "to_empty": nn.Linear(2, 2, device="meta").to_empty(device="cuda").weight,
    "cuda.FloatTensor": torch.cuda.FloatTensor([1.0]),
    "tensor": torch.tensor([1.0], device="cuda"),
    "as_tensor": torch.as_tensor([1.0], device="cuda"),
    "zeros_like": torch.zeros_like(one, device="cuda"),
    "randperm": torch.randperm(3, device="cuda"),
    "normal": torch.normal(0.0, 1.0, (2,), device="cuda"),
    "pinned": torch.empty(2, pin_memory=True).pin_memory(),
    "packed": nn.utils.rnn.pack_sequence([one]).cuda().data,
}
for name, tensor in ON_CPU.items():
    assert tensor.device.type == "cpu", name
assert one.cuda() is one and one.to("cuda") is one and one.pin_memory() is one
with torch.device("cuda"):
    assert torch.zeros(1).is_cpu and torch.zeros(1, device="meta").is_meta
with torch.device("meta"):
    assert torch.zeros(1).is_meta
torch.set_default_device("cuda")
assert nn.Linear(2, 2).weight.is_cpu
torch.set_default_device(None)

assert torch.cuda.is_available() and torch.cuda.is_bf16_supported() and torch.accelerator.is_available()
assert (
    torch.cuda.device_count() == 1
    and torch.cuda.memory_allocated() == torch.cuda.memory.memory_reserved() == 0
)
torch.cuda.set_device("cuda:0")
with torch.cuda.device(0), torch.cuda.nvtx.range("part"), torch.cuda.stream(torch.cuda.Stream()) as stream:
    assert torch.cuda.current_device() == 0 and stream.query()
begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
begin.record()
end.record()
torch.cuda.synchronize()
assert 0 <= begin.elapsed_time(end) < 1000
assert torch.cuda.get_device_properties(0).total_memory == torch.cuda.mem_get_info()[1] > 0
torch.cuda.set_rng_state(torch.cuda.get_rng_state())
torch.backends.cudnn.benchmark = torch.backends.cuda.matmul.allow_tf32 = True
assert isinstance(torch.default_generator, torch.Generator) and torch.Generator("cuda").device.type == "cpu"
assert pickle.loads(pickle.dumps(torch.zeros)) is torch.zeros

for enter in (torch.autocast("cuda"), torch.autocast("cuda", torch.float16), torch.cuda.amp.autocast()):
    with enter:
        assert torch.is_autocast_enabled() and (one.cuda() @ one.cuda()).dtype is torch.bfloat16
with torch.autocast("cuda", enabled=False):
    assert not torch.is_autocast_enabled("cuda")
weight = torch.ones(2, requires_grad=True, device="cuda")
optimizer = torch.optim.AdamW([weight], fused=True)
for scaler in (torch.amp.GradScaler("cuda"), torch.amp.GradScaler()):
    scaler.scale(weight.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.is_enabled() and scaler.get_scale() == 65536


@torch.jit.script
def scripted(given):
    return given + torch.ones(2)


assert scripted(one).sum() == 4
print("all answered")
