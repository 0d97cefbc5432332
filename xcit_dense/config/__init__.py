"""Find, read, change and check configs."""
