"""A tiny model, its content in the weight files of every project, random values, and comparisons."""
import torch

from xcit_dense import XCiT, XCiTClassifier

#: The arch of the golden files, which the authors' code wrote with randomised parameters.
TINY = dict(embed_dims=32, depth=4, num_heads=4, out_indices=(0, 1, 2, 3))


def build(patch_size=16, **options):
    options.setdefault('norm_cfg', dict(type='BN'))
    return XCiT(dict(TINY, patch_size=patch_size), **options)


def randomise(model, noise=0.1):
    """Move gammas, temperatures and batch-norm statistics away from their initial values, which hide mistakes."""
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            value.add_(torch.randn_like(value) * noise)
            if name.endswith('running_var'):
                value.abs_()
        else:
            value.fill_(7)
    return model


def dense_state(patch_size=16):
    """Return the backbone of a dense file, by the authors' names."""
    return randomise(build(patch_size)).state_dict()


def official_state(patch_size=16, num_classes=10):
    """Return the content of the authors' ImageNet file of this size: no pyramid, but a classifier."""
    model = XCiTClassifier(dict(TINY, patch_size=patch_size), num_classes=num_classes, norm_cfg=dict(type='BN'))
    return dict(randomise(model).state_dict())


def prefixed(state, prefix):
    return {f'{prefix}{name}': value for name, value in state.items()}


class Call:
    """Calls a function when it is unpickled."""

    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


def save(path, content):
    torch.save(content, path)
    return path


def relative_error(value, wanted):
    """Return the relative error in the 2-norm, on the device of ``value``."""
    wanted = wanted.double().to(value.device)
    return ((value.double() - wanted).norm() / wanted.norm()).item()


def build_golden(patch_size, golden, kind=XCiT, **options):
    model = kind(dict(TINY, patch_size=patch_size), **dict(norm_cfg=dict(type='BN')) | options)
    model.load_state_dict({n.removeprefix('state/'): v for n, v in golden.items() if n.startswith('state/')})
    return model


def build_golden_classifier(patch_size, tokens_norm, golden):
    arch = dict(embed_dims=32, depth=2, num_heads=4, patch_size=patch_size, tokens_norm=tokens_norm)
    model = XCiTClassifier(arch, num_classes=5, norm_cfg=dict(type='BN'))
    missing, unknown = model.load_state_dict(
        {n.removeprefix('state/'): v for n, v in golden.items() if n.startswith('state/')}, strict=False)
    assert all(name.endswith('num_batches_tracked') for name in missing) and not unknown
    return model


def loss_of(levels):
    """Return the loss of the golden files."""
    return sum((x * torch.linspace(-1, 1, x.numel(), dtype=x.dtype, device=x.device).view_as(x)).mean() for x in levels)


def assert_equal(got, wanted, where=''):
    """Compare dicts, lists, tensors and numbers bit for bit and in the same order; the error names the place."""
    assert type(got) is type(wanted) or isinstance(got, dict) and isinstance(wanted, dict), where
    if isinstance(wanted, dict):
        assert list(got) == list(wanted), where
        for key in wanted:
            assert_equal(got[key], wanted[key], f'{where}.{key}')
    elif isinstance(wanted, (list, tuple)):
        assert len(got) == len(wanted), where
        for i, pair in enumerate(zip(got, wanted, strict=True)):
            assert_equal(*pair, f'{where}[{i}]')
    elif isinstance(wanted, torch.Tensor):
        assert got.dtype == wanted.dtype and torch.equal(got, wanted), where
    else:
        assert got == wanted, where


def assert_close(got, wanted, tolerance, case=''):
    """Compare tensors one by one by their relative error; ``case`` is for the message."""
    for place, (a, b) in enumerate(zip(got, wanted, strict=True)):
        assert a.shape == b.shape and relative_error(a, b) < tolerance, (case, place)


def gradient_pairs(model, tensors, by_layer=True):
    """Return gradients and those of a golden file, by tensor, or by layer: its weight and bias as one vector.

    norm3 counts with the LPI that it feeds: most of its gradient cancels in the batch norm there, and the order of
    summation, which changes with the threads, decides what is left.
    """
    parts = {}
    for name, parameter in model.named_parameters():
        part = name.rpartition('.')[0].replace('norm3', 'local_mp.conv1') if by_layer else name
        parts.setdefault(part, []).append((parameter.grad.flatten(), tensors[f'grad/{name}'].flatten()))
    return {name: [torch.cat(each) for each in zip(*pairs, strict=True)] for name, pairs in parts.items()}
