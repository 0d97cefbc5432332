"""Self-supervision: a backbone learns from images without labels (DINO)."""
