"""What a config may not say."""
