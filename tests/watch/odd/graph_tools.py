"""Autograd's graph as the script reads it: nodes, their hooks and order, edges, saved tensors."""
import torch
from torch.autograd.graph import allow_mutation_on_saved_tensors, disable_saved_tensors_hooks, get_gradient_edge
from training import batches, digest, small

model = small()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in batches():
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    node, names = loss.grad_fn, []
    while node is not None:
        names.append((node.name(), len(node.next_functions)))
        node = node.next_functions[0][0] if node.next_functions else None
    loss.grad_fn.register_hook(lambda *_: print("node"))
    loss.grad_fn.register_prehook(lambda *_: print("before"))
    first = loss.grad_fn._sequence_nr()
    print(names, get_gradient_edge(loss).output_nr, loss.grad_fn._saved_target.equal(y), torch.ones(1, requires_grad=True).mul(2).grad_fn._sequence_nr() - first)
    with torch.autograd.set_multithreading_enabled(False):
        loss.backward()
    optimizer.step()
with disable_saved_tensors_hooks("no hooks here"):
    model(x).sum().backward()
with allow_mutation_on_saved_tensors():
    a = torch.ones(2, 4, requires_grad=True)
    b = a.clone()
    out = (b**2).sum()
    b.sin_()
    out.backward()
print(a.grad.sum().item(), digest(model))
