"""Learning without labels (DINO)."""
