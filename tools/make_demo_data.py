"""Make a small data set, textured scenes with overlapping objects of five classes, in COCO's and ADE20k's layout."""
from xcit_dense.cli.make_demo_data import main

if __name__ == '__main__':
    main()
