"""Learning without labels (DINO) or from a teacher, and tests of features."""
