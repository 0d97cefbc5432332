"""Build a TensorRT engine from an exported file, run it on an image and compare it with onnxruntime.

NOT RUN YET: written from TensorRT's documentation, on a machine without a GPU. Needs tensorrt (10 or 11) and torch
with CUDA; --dtype float16 and bfloat16 also need nvidia-modelopt[onnx]. See docs/tensorrt.md.
"""
IS_TOOL_OF_XCIT_DENSE = True  # so that importing the package loads nothing

import argparse  # noqa: E402
import re  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from importlib import import_module  # noqa: E402
from pathlib import Path  # noqa: E402

import numpy as np  # noqa: E402

from xcit_dense.runtime import ImageError, Model, ModelError  # noqa: E402

#: These stay in float32: norms, softmax, sums of squares, and everything that computes box coordinates and scores.
FLOAT32_OPS = ('BatchNormalization', 'InstanceNormalization', 'GroupNormalization', 'LayerNormalization', 'Softmax',
               'LogSoftmax', 'ReduceL2', 'ReduceSum', 'ReduceSumSquare', 'ReduceMean', 'Pow', 'Sqrt', 'Reciprocal',
               'Exp', 'TopK', 'NonMaxSuppression', 'RoiAlign', 'Resize', 'ArgMax')
#: Ops that may be between a matrix product and its weights.
_AS_IT_IS = ('Transpose', 'Identity', 'Reshape', 'Cast', 'Unsqueeze', 'Squeeze', 'DequantizeLinear')


def main(argv=None):
    """Run the script; return an error message for `sys.exit`, or None."""
    args = parse(argv)
    try:
        model = Model(args.model)
        if model.task == 'backbone':
            raise ModelError('the file holds only a backbone, which needs normalised input instead of an image. Build '
                             'it with trtexec')
        batch = model.prepare(args.image)[None]
        if not all(low <= got <= high for low, got, high in zip(args.min, batch.shape, args.max, strict=False)):
            raise ImageError(f'the resized image is {"x".join(map(str, batch.shape[:3]))}, which is not within --min '
                             'and --max')
        trt, torch = needed('tensorrt', 'tensorrt'), needed('torch', 'torch')
        if not torch.cuda.is_available():
            raise ModelError('torch finds no GPU that it can use')
        onnx = needed('onnx', 'onnx')
        graph = with_floats_first(onnx, onnx.load(args.model))
        if args.dtype != 'float32':
            graph = in_mixed_precision(onnx, graph, batch, args.dtype, args.float32)
        engine = build(trt, graph.SerializeToString(), args)
        args.engine.write_bytes(engine)
        found, seconds = run(trt, torch, engine, batch, args.repeats)
    except (ModelError, ImageError) as error:
        return str(error)
    wanted, start = model.run(batch), time.perf_counter()
    model.run(batch)
    print(f'{args.engine}: {len(engine) / 2 ** 20:.1f} MiB, {args.dtype}')
    print(f'TensorRT {seconds * 1000:.2f} ms, onnxruntime on the CPU {(time.perf_counter() - start) * 1000:.2f} ms')
    print(*compare(found, wanted), sep='\n')
    return None


def parse(argv=None):
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('model', metavar='MODEL.onnx', help='file written by `python -m xcit_dense export`')
    parser.add_argument('image', metavar='IMAGE', help='image to run the engine on')
    parser.add_argument('--engine', type=Path, metavar='FILE',
                        help='engine file to write (default: the model file with .plan)')
    for name, size in (('min', '1x320x320'), ('opt', '1x800x1280'), ('max', '4x1344x1344')):
        parser.add_argument(f'--{name}', type=_size, default=_size(size), metavar='BxHxW',
                            help=f'{name}imum of the profile: images, height, width (default: {size})')
    parser.add_argument('--dtype', choices=('float32', 'float16', 'bfloat16'), default='float32',
                        help='type of everything that does not have to stay in float32 (default: float32)')
    parser.add_argument('--float32', nargs='*', default=[], metavar='PATTERN',
                        help='regular expressions for names of more nodes that stay in float32')
    parser.add_argument('--workspace', type=float, default=4, metavar='GIB', help='most memory that TensorRT '
                        'may use as scratch space while it builds and runs layers, in GiB (default: 4)')
    parser.add_argument('--repeats', type=int, default=50, metavar='N', help='number of timed runs (default: 50)')
    args = parser.parse_args(argv)
    if not all(low <= opt <= high for low, opt, high in zip(args.min, args.opt, args.max, strict=True)):
        parser.error('--min must not be above --opt, and --opt not above --max, in images, height and width')
    for pattern in args.float32:
        try:
            re.compile(pattern)
        except re.error as error:
            parser.error(f'--float32 {pattern}: {error}')
    if args.repeats < 1 or not 0 < args.workspace < float('inf'):
        parser.error('--repeats and --workspace must be above 0')
    args.engine = args.engine or Path(args.model).with_suffix('.plan')
    if args.engine.exists():
        parser.error(f'{args.engine} exists already. Choose another file with --engine')
    return args


def _size(text):
    if not re.fullmatch(r'[1-9]\d*x[1-9]\d*x[1-9]\d*', text):
        raise argparse.ArgumentTypeError(f'must be images, height and width, such as 1x800x1280, got {text!r}')
    return tuple(map(int, text.split('x')))


def needed(name, package):
    """Import a module, or raise `ModelError` that says how to install it."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ModelError(f'{name} cannot be imported ({error}): pip install {package}') from error


def with_floats_first(onnx, model):
    """Return a model that first casts its image to float32: TensorRT supports uint8 only for inputs and outputs."""
    for node in model.graph.node:
        for place, name in enumerate(node.input):
            if name == 'image':
                node.input[place] = 'image_as_floats'
    model.graph.node.insert(0, onnx.helper.make_node('Cast', ['image'], ['image_as_floats'], 'image_as_floats', to=1))
    del model.graph.value_info[:]  # they still say uint8 for what is float32 now
    return model


def in_mixed_precision(onnx, model, batch, dtype, patterns):
    """Return the model with casts to a smaller type wherever float32 is not needed; ``batch`` shows the value ranges.

    TensorRT 11 has no precision flags for builders and layers any more; it follows the types in the graph.
    """
    autocast = needed('modelopt.onnx.autocast', "'nvidia-modelopt[onnx]'")
    exclude = [*(re.escape(name) for name in products_of_activations(model.graph)), *patterns]
    with tempfile.TemporaryDirectory() as folder:
        data, path = Path(folder, 'image.npz'), Path(folder, 'model.onnx')
        np.savez(data, image=batch)
        onnx.save(model, path)
        return autocast.convert_to_mixed_precision(
            onnx_path=str(path), low_precision_type=dict(float16='fp16', bfloat16='bf16')[dtype], keep_io_types=True,
            calibration_data=str(data), nodes_to_exclude=exclude, op_types_to_exclude=list(FLOAT32_OPS))


def products_of_activations(graph) -> list:
    """Return the names of matrix products without weights: the Gram matrices of attention and their products."""
    made_by = {name: node for node in graph.node for name in node.output}
    constants = {tensor.name for tensor in graph.initializer}

    def is_weight(name):
        while name in made_by and made_by[name].op_type in _AS_IT_IS:
            name = made_by[name].input[0]
        return name in constants or (name in made_by and made_by[name].op_type == 'Constant')

    return [node.name for node in graph.node if node.op_type in ('MatMul', 'Einsum')
            and not any(is_weight(name) for name in node.input)]


def build(trt, content, args):
    """Return an engine for one profile as bytes."""
    logger = trt.Logger(trt.Logger.WARNING)
    trt.init_libnvinfer_plugins(logger, '')  # RoiAlign is a plugin
    builder = trt.Builder(logger)
    # follow the types in the graph; TensorRT 11 has no other mode
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse(content):
        raise ModelError('TensorRT cannot read the file: ' + '; '.join(
            str(parser.get_error(i)) for i in range(parser.num_errors)))
    config = builder.create_builder_config()
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, int(args.workspace * 2 ** 30))
    if hasattr(trt.BuilderFlag, 'TF32'):
        config.clear_flag(trt.BuilderFlag.TF32)  # otherwise float32 products have only the 10 bits of float16
    profile = builder.create_optimization_profile()
    profile.set_shape('image', *((*size, 3) for size in (args.min, args.opt, args.max)))
    config.add_optimization_profile(profile)
    engine = builder.build_serialized_network(network, config)
    if engine is None:
        raise ModelError('TensorRT cannot build an engine. See its messages above')
    return bytes(engine)


def run(trt, torch, engine, batch, repeats):
    """Return the outputs of an engine by name, and the seconds of one run."""

    class Outputs(trt.IOutputAllocator):
        """Allocates memory once a size is known: the size of NMS's output depends on the image."""

        def __init__(self):
            trt.IOutputAllocator.__init__(self)
            self.memory, self.shapes = {}, {}

        def reallocate_output_async(self, name, memory, size, alignment, stream):
            if name not in self.memory or self.memory[name].numel() < size:
                self.memory[name] = torch.empty(max(size, 1), dtype=torch.uint8, device='cuda')
            return self.memory[name].data_ptr()

        def reallocate_output(self, name, memory, size, alignment):
            return self.reallocate_output_async(name, memory, size, alignment, None)

        def notify_shape(self, name, shape):
            self.shapes[name] = tuple(shape)

    engine = trt.Runtime(trt.Logger(trt.Logger.WARNING)).deserialize_cuda_engine(engine)
    context, stream = engine.create_execution_context(), torch.cuda.Stream()
    image, outputs = torch.from_numpy(batch).cuda(), Outputs()
    context.set_input_shape('image', tuple(batch.shape))
    context.set_tensor_address('image', image.data_ptr())
    names = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
    names = [name for name in names if engine.get_tensor_mode(name) == trt.TensorIOMode.OUTPUT]
    for name in names:
        context.set_output_allocator(name, outputs)
    torch.cuda.synchronize()
    for number in range(repeats + 5):
        if number == 5:  # warm
            stream.synchronize()
            start = time.perf_counter()
        if not context.execute_async_v3(stream.cuda_stream):
            raise ModelError('TensorRT cannot run the image. See its messages above')
    stream.synchronize()
    seconds = (time.perf_counter() - start) / repeats
    found = {}
    for name in names:
        kind = np.dtype(trt.nptype(engine.get_tensor_dtype(name)))
        size = kind.itemsize * int(np.prod(outputs.shapes[name]))
        found[name] = outputs.memory[name][:size].cpu().numpy().view(kind).reshape(outputs.shapes[name])
    return found, seconds


def compare(found, wanted) -> list:
    """Return lines on how far the outputs are from those of onnxruntime."""
    lines = []
    if 'dets' in wanted:
        here, there = (outputs['dets'][0, :int(outputs['num'][0])] for outputs in (found, wanted))
        lines.append(f'objects: {len(here)}, onnxruntime {len(there)}')
        if len(here) and len(there):
            nearest = np.abs(there[:, None, :4] - here[None, :, :4]).max(-1)
            best = nearest.argmin(1)
            lines += [f'boxes: differ by up to {nearest.min(1).max():.4f} pixels',
                      f'scores: differ by up to {np.abs(there[:, 4] - here[best, 4]).max():.6f}']
    else:
        lines.append(f'labels: {(found["labels"] != wanted["labels"]).mean():.4%} of the pixels differ')
        if 'scores' in wanted:
            lines.append(f'scores: differ by up to {np.abs(found["scores"] - wanted["scores"]).max():.6f}')
    return lines


if __name__ == '__main__':
    sys.exit(main())
