"""Convert XCiT weights between the authors' files, dense models, timm and mmpretrain, or say what a file is."""
from xcit_dense.cli.convert_checkpoint import main

if __name__ == '__main__':
    main()
