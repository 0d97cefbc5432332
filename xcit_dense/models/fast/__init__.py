"""What is written by hand for speed."""
