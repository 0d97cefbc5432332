"""What a test of a classifier tells beside its metrics: which classes it takes for which, and its worst mistakes."""
