"""Check the data set of a config: print every fault, count the classes, draw a contact sheet."""
from xcit_dense.cli.check_data import main

if __name__ == '__main__':
    main()
