"""Policy gradient for a string generator: reward strings in which every bracket is closed."""

import torch
import torch.nn.functional as F
from torch import nn

TOKENS = "CN()"
START = len(TOKENS)
LENGTH = 8


def reward(text):
    depth, score = 0, 0.0
    for character in text:
        depth += (character == "(") - (character == ")")
        if depth < 0:
            return 0.0
        score += character in "()"
    return (0.2 + score / LENGTH) if depth == 0 else 0.1


class Generator(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.embed = nn.Embedding(len(TOKENS) + 1, width)
        self.cell = nn.GRUCell(width, width)
        self.out = nn.Linear(width, len(TOKENS))

    def forward(self, token, hidden):
        hidden = self.cell(self.embed(token), hidden)
        return self.out(hidden), hidden

    def sample(self, batch):
        token = torch.full((batch,), START)
        hidden = torch.zeros(batch, self.cell.hidden_size)
        chosen, log_probs = [], []
        for _ in range(LENGTH):
            logits, hidden = self(token, hidden)
            token = torch.multinomial(F.softmax(logits.detach(), dim=1), 1).squeeze(1)
            log_probs.append(F.log_softmax(logits, dim=1).gather(1, token[:, None]).squeeze(1))
            chosen.append(token)
        return torch.stack(chosen, dim=1), torch.stack(log_probs, dim=1)


class Reinforcement:
    def __init__(self, generator, lr=5e-3):
        self.generator = generator
        self.optimizer = torch.optim.Adam(generator.parameters(), lr=lr)
        self.baseline = 0.0

    def policy_gradient(self, n_batch=64):
        self.generator.train()
        sequences, log_probs = self.generator.sample(n_batch)
        rewards = torch.tensor([reward("".join(TOKENS[t] for t in row)) for row in sequences.tolist()])
        advantage = rewards - self.baseline
        self.baseline = 0.9 * self.baseline + 0.1 * rewards.mean().item()
        rl_loss = -(advantage * log_probs.sum(dim=1)).mean()
        self.optimizer.zero_grad()
        rl_loss.backward()
        nn.utils.clip_grad_norm_(self.generator.parameters(), 1.0)
        self.optimizer.step()
        return rewards.mean().item(), rl_loss.item()


def main():
    torch.manual_seed(8)
    agent = Reinforcement(Generator())
    for iteration in range(1, 81):
        mean_reward, loss = agent.policy_gradient()
        if iteration % 20 == 0:
            print(f"iteration {iteration}: reward {mean_reward:.3f}  loss {loss:.3f}")
    agent.generator.eval()
    with torch.no_grad():
        sequences, _ = agent.generator.sample(5)
    for row in sequences.tolist():
        print("  ", "".join(TOKENS[t] for t in row))


if __name__ == "__main__":
    main()
