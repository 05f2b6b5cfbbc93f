"""Another thread prints all the time. How many lines depends on the machine; none may be missing."""
import threading, time, sys, torch
from torch import nn
torch.manual_seed(0)
stop = False
def work():
    n = 0
    while not stop:
        print("tick", n, flush=True); n += 1; time.sleep(0.01)
class M(nn.Module):
    def __init__(self):
        super().__init__(); self.l = nn.Linear(4, 3)
    def forward(self, x):
        time.sleep(0.05); return self.l(x)
model = M(); optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randint(0, 3, (64,)))
t = threading.Thread(target=work); t.start()
for x, y in torch.utils.data.DataLoader(data, batch_size=8):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
stop = True; t.join()
