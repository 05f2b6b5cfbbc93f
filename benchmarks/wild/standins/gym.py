"""A stand-in for gym: Gymnasium's environments behind gym's old functions, four values to a step.

The names of old versions (CartPole-v0) mean the newest ones.
"""

import os

import gymnasium
from gymnasium import spaces, wrappers

__all__ = ["logger", "make", "spaces", "wrappers"]
_NEWEST = {"CartPole": "CartPole-v1", "Pendulum": "Pendulum-v1", "MountainCar": "MountainCar-v0"}
logger = gymnasium.logger


class Env(gymnasium.Wrapper):
    """One environment."""

    def step(self, action):
        state, reward, is_over, is_cut, details = self.env.step(action)
        return state, float(reward), is_over or is_cut, details

    def reset(self, **options):
        return self.env.reset(seed=getattr(self, "_seed", None), **options)[0]

    @property
    def _max_episode_steps(self):
        return self.env.spec.max_episode_steps

    def seed(self, seed=None):
        self._seed = seed


def make(name, **options):
    """Return an environment by its name."""
    if os.environ.get("WILD_GYM") == "new":  # for scripts of gym 0.26: five values to a step
        return gymnasium.make(_NEWEST.get(name.split("-")[0], name))
    return Env(gymnasium.make(_NEWEST.get(name.split("-")[0], name), **options))
