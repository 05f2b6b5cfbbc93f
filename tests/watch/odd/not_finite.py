"""A loss that becomes infinite: what the script writes is written once."""
import torch
from training import batches, digest, small

with open("lines.txt", "a") as file:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, (x, y) in enumerate(batches(4)):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y) * (float("inf") if number == 2 else 1)
        loss.backward()
        optimizer.step()
        file.write(f"{number}\n")
print(loss.item())
