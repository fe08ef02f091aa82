"""Advantages of grouped rollouts."""

import numpy as np


def group_advantage(reward_GR, present_GR=None):
  """Reward minus the mean of its group, zero for absent members.

  Not divided by the group's standard deviation: with nearly equal rewards that
  quotient explodes, and it weighs easy and hard tasks up (Liu et al. 2025,
  arXiv 2503.20783). So |advantage| never exceeds the group's spread.
  """
  reward_GR = np.asarray(reward_GR, np.float64)
  if present_GR is None:
    present_GR = np.ones(reward_GR.shape, bool)
  present_GR = np.asarray(present_GR, bool)
  count_G1 = present_GR.sum(-1, keepdims=True)
  total_G1 = np.where(present_GR, reward_GR, 0).sum(-1, keepdims=True)
  centred_GR = reward_GR - total_G1 / np.maximum(count_G1, 1)
  advantage_GR = np.where(present_GR, centred_GR, 0)
  # Equal rewards leave rounding residue; they carry no preference.
  spread_G1 = np.where(present_GR, reward_GR, -np.inf).max(
    -1, keepdims=True
  ) - np.where(present_GR, reward_GR, np.inf).min(-1, keepdims=True)
  return np.where(spread_G1 > 0, advantage_GR, 0).astype(np.float32)
