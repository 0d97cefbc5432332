"""Distillation: a small classifier learns from the outputs of a large one."""
