"""Route support messages to an intent; confidence is logged for the calibration dashboard."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TERMS, INTENTS, TRAIN, TEST = 300, 6, 720, 180

torch.manual_seed(31)


class Router(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.bag = nn.EmbeddingBag(TERMS, width, mode="mean")
        self.drop = nn.Dropout(0.1)
        self.score = nn.Linear(width, INTENTS)

    def forward(self, terms):
        return self.score(self.drop(torch.tanh(self.bag(terms))))


# every intent has forty typical terms, half of a message is made of them
typical = torch.stack([torch.randperm(TERMS)[:40] for _ in range(INTENTS)])
intent = torch.randint(0, INTENTS, (TRAIN + TEST,))
own = typical[intent].gather(1, torch.randint(0, 40, (TRAIN + TEST, 6)))
messages = torch.cat([own, torch.randint(0, TERMS, (TRAIN + TEST, 6))], dim=1)

train_loader = DataLoader(TensorDataset(messages[:TRAIN], intent[:TRAIN]), batch_size=36, shuffle=True)
test_messages, test_intent = messages[TRAIN:], intent[TRAIN:]

router = Router()
optimizer = torch.optim.Adam(router.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
loss_fn = nn.CrossEntropyLoss(label_smoothing=0.05)

for epoch in range(5):
    router.train()
    loss_sum = confidence_sum = 0.0
    for batch, target in train_loader:
        logits = router(batch)
        probabilities = logits.softmax(-1)  # expect: LOSS01
        confidence_sum += probabilities.detach().max(dim=-1).values.sum().item()
        loss = loss_fn(probabilities, target)  # expect: LOSS01
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        loss_sum += loss.item() * len(target)
    scheduler.step()
    print(f"epoch {epoch}: loss {loss_sum / TRAIN:.4f}, confidence {confidence_sum / TRAIN:.3f}")

router.eval()
with torch.no_grad():
    accuracy = (router(test_messages).argmax(dim=-1) == test_intent).float().mean().item()
print(f"test accuracy {accuracy:.3f}")
