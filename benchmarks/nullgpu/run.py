"""Run a command on a GPU that computes nothing: python benchmarks/nullgpu/run.py benchmark --on-paper

It puts empty functions in the place of cudart, cuBLAS, cuDNN and libcuda under a CUDA build of torch, and notes every
launch, copy and wait. So torch's own host code for CUDA runs, with its allocator, autograd and Inductor, on a machine
without a GPU. Values and times mean nothing. It needs gcc, nm and the headers that come with Triton.
"""
import ctypes
import glob
import os
import re
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
#: Functions of cuDNN that run on the GPU; the others describe and choose.
_CUDNN = re.compile(r'cudnn(Convolution(Forward|BackwardData|BackwardFilter)|BatchNormalization|PoolingF)')
#: Functions that answer without a GPU in the real libraries too.
_REAL = re.compile(r'Get(Version|CudartVersion|(LastError|Error|Status)(String|Name)|Property)$')


def build(folder: Path):
    """Compile the libraries for the installed torch into a folder."""
    import torch
    site = Path(torch.__file__).parents[1]
    headers = site / 'triton/backends/nvidia/include'
    if not (headers / 'driver_types.h').exists():
        sys.exit(f'there are no CUDA headers in {headers}: install the CUDA build of torch (pip install torch)')
    folder.mkdir(parents=True, exist_ok=True)
    (folder / 'auto.h').write_text(_stubs(site))
    for source, name, options in (('null.c', 'libnull.so', ['-lpthread']),
                                  ('cu.c', 'libcuda.so.1', ['-Wl,-soname,libcuda.so.1'])):
        subprocess.run(['gcc', '-O1', '-w', '-shared', '-fPIC', f'-I{headers}', f'-I{folder}', HERE / source, '-o',
                        folder / name, *options, '-ldl'], check=True)
    (folder / 'libcuda.so').unlink(missing_ok=True)
    (folder / 'libcuda.so').symlink_to('libcuda.so.1')


def _stubs(site):
    """Return an empty function for every CUDA symbol that torch needs and null.c does not define."""
    libraries = [site / 'torch/lib' / f'lib{name}.so' for name in (
        'torch_cuda', 'c10_cuda', 'torch_python', 'torch_cuda_linalg', 'torch_cpu')]
    names = set()
    for library in [path for path in libraries if path.exists()] + glob.glob(f'{site}/torchvision/_C*.so'):
        text = subprocess.run(['nm', '-D', '--undefined-only', library], capture_output=True, text=True,
                              check=True).stdout
        names |= {name for name in re.findall(r' U (\w+)', text)
                  if re.match(r'(cublas|cudnn|cusolver|cusparse|cuda[A-Z]|__cuda)', name)}
    real = set(filter(_REAL.search, names))
    defined = set(re.findall(r'^(?:int|void\*\*|void|unsigned)\s+\**\s*(\w+)\(', (HERE / 'null.c').read_text(), re.M))
    return ''.join(f'int {name}(void){{ note("{name}",0); return 0; }}\n' for name in sorted(names - real - defined))


def launches(step) -> tuple:
    """As `benchmarks.costs.launches`, which asks a profiler that needs a GPU."""
    names = [name for name in launched(step) if not name.startswith('memcpy H2H')]
    waits = sum(name.startswith('SYNC') for name in names)
    return len(names) - waits, waits


def launched(step) -> list:
    """Return the names of the kernels, copies, fills and waits (SYNC) of a function, in order."""
    library = ctypes.CDLL(os.path.join(os.environ['NULL_GPU'], 'libnull.so'))
    library.null_reset()
    library.null_on(1)
    step()
    library.null_on(0)
    with tempfile.NamedTemporaryFile() as file:
        library.null_dump(file.name.encode())
        lines = Path(file.name).read_text().splitlines()
    names = [line.split('\t')[0] for line in lines]
    return [name for name in names if not name.startswith(('cudaMalloc', 'cudaFree', 'cublas'))
            and (_CUDNN.match(name) or name.startswith('CUDNN') or not name.startswith('cudnn'))]


def environment() -> dict:
    """Return the environment of a process that has the null GPU, which is built if it must be."""
    import torch
    folder = HERE.parents[1] / 'build/nullgpu' / torch.__version__  # of the clone, from wherever it is called
    sources = [HERE / name for name in ('null.c', 'cu.c', 'run.py')]
    if not (folder / 'libcuda.so').exists() or any(
            source.stat().st_mtime > (folder / 'libnull.so').stat().st_mtime for source in sources):
        build(folder)
    return dict(os.environ, NULL_GPU=str(folder), LD_LIBRARY_PATH=str(folder), TRITON_LIBCUDA_PATH=str(folder),
                LD_PRELOAD=str(folder / 'libnull.so'), CUDA_VISIBLE_DEVICES='0')


def main():
    """Run a script, or a command of xcit_dense, with the null GPU."""
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    if 'NULL_GPU' not in os.environ:
        os.execve(sys.executable, [sys.executable, *sys.argv], environment())
    sys.path.insert(0, str(HERE.parents[1]))
    if sys.argv[1].endswith('.py'):
        sys.argv = sys.argv[1:]
        runpy.run_path(sys.argv[0], run_name='__main__')
        return
    from benchmarks import paper
    paper.launches = launches
    runpy.run_module('xcit_dense', run_name='__main__', alter_sys=True)


if __name__ == '__main__':
    main()
