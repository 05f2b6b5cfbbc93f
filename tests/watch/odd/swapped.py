"""Modules whose conversion swaps the contents of their parameters, as torch does for some kinds of tensors."""
import torch
from training import digest, small, train

torch.__future__.set_swap_module_params_on_conversion(True)
model = small()
names = {id(item): name for name, item in model.named_parameters()}
optimizer = train(model)
optimizer.zero_grad()
model.double().float()
print([names.get(id(item)) for item in model.parameters()])
train(model)
model.load_state_dict({name: item.clone() for name, item in model.state_dict().items()})
first, second = torch.ones(2), torch.zeros(3)
torch.utils.swap_tensors(first, second)
train(model)
print(first.tolist(), second.tolist(), digest(model))
