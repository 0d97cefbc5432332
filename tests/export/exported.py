"""Exported graphs in onnxruntime, compared with the models that they come from."""
import onnxruntime
import torch
from torch.export import Dim

#: Shapes of the inputs of graphs that take images (B, H, W, 3), and of those that also take a size.
IMAGES = {0: Dim.DYNAMIC, 1: Dim.DYNAMIC, 2: Dim.DYNAMIC}


def export(graph, path, inputs, shapes, names, translations=None):
    """Export a graph as the package does, with examples of its arguments and what is free of each; return `opened`."""
    torch.onnx.export(graph, tuple(inputs.values()), str(path), dynamo=True, dynamic_shapes=tuple(shapes),
                      external_data=False, input_names=list(inputs), output_names=list(names), verbose=False,
                      custom_translation_table=translations)
    return opened(path)


def opened(file):
    """Return a function that runs an ONNX file, or its content: inputs and outputs are arrays by name."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(file if isinstance(file, bytes) else str(file), options,
                                           providers=['CPUExecutionProvider'])
    names = [output.name for output in session.get_outputs()]

    def run(**arrays):
        return dict(zip(names, session.run(names, arrays), strict=True))

    return run
