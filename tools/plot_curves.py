"""Plot the loss and metric curves of a training run."""
from xcit_dense.cli.plot_curves import main

if __name__ == '__main__':
    main()
