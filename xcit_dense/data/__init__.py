"""Data sets of a config: where they lie, what they hold, which classes they have."""
