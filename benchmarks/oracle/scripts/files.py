"""Files through torch, NumPy and safetensors: while training, and after it."""

import io

import numpy as np
import safetensors.numpy
import safetensors.torch
import torch
from torch import nn


def main():
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):
        optimizer.zero_grad()
        loss = model(torch.randn(5, 4)).square().mean()
        loss.backward()
        optimizer.step()
        checkpoint = {
            "model": {name: item.clone() for name, item in model.state_dict().items()},
            "step": step,
        }
        # plant 0-2: checkpoint["model"]["weight"] | checkpoint["model"]["bias"]
        torch.save(checkpoint, f"checkpoint-{step}.pt")
    weights, mask = model.weight.detach().clone(), torch.ones(16, dtype=torch.uint8)
    nested = {"a": [{"b": (weights.clone(), {"c": [[[weights.clone()]]]})}]}
    array, losses = weights.numpy().copy(), [float(loss.detach()), 2.0, 3.0]
    single, several = np.float64(loss.item()) * np.ones(1), {"x": array.copy(), "y": array.copy()}
    tensors, arrays = {"w": weights.clone()}, {"w": array.copy()}
    odd = np.empty(2, dtype=object)
    odd[:] = [array.copy(), array.copy()]
    # plant: weights | mask | nested["a"][0]["b"][0] | nested["a"][0]["b"][1]["c"][0][0][0] | array | losses
    # plant: single | several["x"] | several["y"] | tensors["w"] | arrays["w"] | odd[1] | model.bias
    torch.save((weights, model.bias), "tuple.pt")
    torch.save(mask, io.BytesIO())
    torch.save(nested, "nested.pt")
    np.save("array.npy", array)
    np.save("losses.npy", losses)
    np.save("single.npy", arr=single)
    np.savez("several.npz", **several)
    np.savez_compressed("compressed.npz", several["x"], several["y"])
    np.savetxt("table.txt", array)
    np.save("odd.npy", odd, allow_pickle=True)
    safetensors.torch.save_file(tensors, "tensors.safetensors")
    safetensors.numpy.save_file(arrays, "arrays.safetensors")


main()
