"""Draw the predictions of a checkpoint on images; write COCO results (detection) or label maps (segmentation)."""
from xcit_dense.cli.predict import main

if __name__ == '__main__':
    main()
