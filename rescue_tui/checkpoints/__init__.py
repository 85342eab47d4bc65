"""Readers that judge checkpoints from bytes alone: no torch, no TensorFlow, no JAX, and no pickle is ever executed."""
