"""Train the model of a config, on the GPU if there is one."""
from xcit_dense.cli.train import main

if __name__ == '__main__':
    main()
