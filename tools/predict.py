"""Predict images: draw the predictions, write COCO results (detection) or label maps (segmentation)."""
IS_TOOL_OF_XCIT_DENSE = True  # so that the import loads nothing before the help is shown

from xcit_dense.cli.predict import main  # noqa: E402

if __name__ == '__main__':
    main()
