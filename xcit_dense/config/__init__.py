"""Configs: which there are, how they are read and changed, and what they may not say."""
