"""What a training and a test tell: curves, figures per class, confusions, the worst images, and one page with all."""
