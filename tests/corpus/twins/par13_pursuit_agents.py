"""Two agents learn to meet on a ring: independent double Q-learning, hard updates of the targets."""

import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn


@dataclass
class Args:
    places: int = 9
    episodes: int = 60
    horizon: int = 12
    batch: int = 48
    gamma: float = 0.9
    lr: float = 4e-3
    target_every: int = 20
    seed: int = 8


class Meeting:
    """Agents stay, go left or go right on a ring; both are paid when they meet."""

    moves = np.array([0, -1, 1])

    def __init__(self, args, rng):
        self.places, self.rng = args.places, rng

    def reset(self):
        self.at = self.rng.choice(self.places, size=2, replace=False)
        return self.observe()

    def observe(self):
        gap = (self.at[::-1] - self.at) % self.places
        return np.eye(self.places, dtype=np.float32)[gap]

    def step(self, actions):
        self.at = (self.at + self.moves[actions]) % self.places
        met = bool(self.at[0] == self.at[1])
        return self.observe(), 1.0 if met else -0.05, met


class Learner:
    def __init__(self, args, rng):
        self.args, self.rng = args, rng
        self.eval_net = nn.Sequential(nn.Linear(args.places, 32), nn.Tanh(), nn.Linear(32, 3))
        self.target_net = copy.deepcopy(self.eval_net).requires_grad_(False)
        self.optimizer = torch.optim.RMSprop(self.eval_net.parameters(), lr=args.lr)
        self.updates = 0

    @torch.no_grad()
    def act(self, observation, epsilon):
        if self.rng.random() < epsilon:
            return int(self.rng.integers(3))
        return int(self.eval_net(torch.from_numpy(observation)).argmax())

    def learn(self, batch):
        now, action, reward, then, met = batch
        value = self.eval_net(now).gather(1, action[:, None]).squeeze(1)
        with torch.no_grad():
            best = self.eval_net(then).argmax(dim=1, keepdim=True)
            ahead = self.target_net(then).gather(1, best).squeeze(1)
            target = reward + self.args.gamma * ahead * (1 - met)
        loss = nn.functional.mse_loss(value, target)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.eval_net.parameters(), 5.0)
        self.optimizer.step()
        self.updates += 1
        if self.updates % self.args.target_every == 0:
            self.target_net.load_state_dict(self.eval_net.state_dict())
        return loss.item()


def draw(buffer, agent, size, rng):
    rows = [buffer[i] for i in rng.integers(len(buffer), size=size)]
    now, actions, rewards, then, met = zip(*rows, strict=True)
    return (
        torch.from_numpy(np.stack([o[agent] for o in now])),
        torch.tensor([a[agent] for a in actions]),
        torch.tensor(rewards),
        torch.from_numpy(np.stack([o[agent] for o in then])),
        torch.tensor(met, dtype=torch.float32),
    )


def main(args):
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    env = Meeting(args, rng)
    learners = [Learner(args, rng) for _ in range(2)]
    buffer, returns = [], []
    for episode in range(1, args.episodes + 1):
        epsilon = max(0.05, 1 - episode / 30)
        now, total = env.reset(), 0.0
        for _ in range(args.horizon):
            actions = [learner.act(now[i], epsilon) for i, learner in enumerate(learners)]
            then, reward, met = env.step(actions)
            buffer.append((now, actions, reward, then, met))
            now, total = then, total + reward
            if len(buffer) >= args.batch:
                for i, learner in enumerate(learners):
                    learner.learn(draw(buffer, i, args.batch, rng))
            if met:
                break
        returns.append(total)
        if episode % 15 == 0:
            print(f"episode {episode}: mean return {np.mean(returns[-15:]):.2f}  epsilon {epsilon:.2f}")


if __name__ == "__main__":
    main(Args())
