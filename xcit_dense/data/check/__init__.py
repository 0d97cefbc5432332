"""The check of a data set before it is trained on: problems, counts, a contact sheet and a cleaned copy."""
