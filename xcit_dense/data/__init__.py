"""The data sets of a config: where they are, what they contain, and which classes they have."""
