"""The network as the paper writes it."""
