"""Learning without labels (DINO) and from a teacher (distillation)."""
