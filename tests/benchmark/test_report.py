"""The tables and pictures of a benchmark: known numbers in, each with its unit out."""
import pytest
from matplotlib.figure import Figure

from benchmarks import report

GIB = 2**30
MACHINE = dict(device='a device', torch='2.9', rates=dict(
    float32=dict(matrix=1.5e12, copy=25e9), bfloat16=dict(matrix=3e12, copy=26e9)))
OURS = dict(name='ours', seconds=0.25, fastest=0.125, slowest=0.5, times_as_fast=1.75, multiply_adds=2.5e9,
            share_of_matrix_rate=0.42, share_of_copy_rate=0.08, saved_bytes=0.5 * GIB, saved_share=0.3,
            peak_bytes=1.5 * GIB, error=1.5e-6, gradient_error=2.5e-5)
PLAIN = dict(name='authors', failed='out of memory')


def cell(mode, *rows):
    return dict(arch='nano_12_p16', mode=mode, dtype='float32', image=[64, 96], batch=3, tokens=1234, rows=list(rows))


def growth():
    """Time like the number of tokens, memory like its square, of images of 16 x 16 pixels a token."""
    return [dict(cell('inference', dict(OURS, seconds=1e-3 * tokens, peak_bytes=GIB * (tokens / 1024)**2), PLAIN),
                 tokens=tokens, image=[side, side], batch=1)
            for tokens, side in ((1024, 512), (4096, 1024), (16384, 2048))]


def result_of(**parts):
    return dict(dict(machine=MACHINE, settings={}, cells=[], growth=[], detectors=[]), **parts)


def tables(text):
    """Every table of a Markdown text as a list of dicts."""
    found, lines = [], []
    for line in [*text.splitlines(), '']:
        if line.startswith('|'):
            lines.append([part.strip() for part in line.strip('|').split('|')])
        elif lines:
            found.append([dict(zip(lines[0], row, strict=True)) for row in lines[2:]])
            lines = []
    return found


def test_cells_in_their_units():
    """Runtimes have the size of their file and are next to ours."""
    runtime = dict(name='onnxruntime', seconds=1., fastest=1., slowest=1., multiply_adds=None, saved_bytes=0,
                   times_ours=2.25, file_bytes=47e6)
    text = report.markdown(result_of(cells=[cell('training', OURS, PLAIN), cell('inference', runtime)]))
    assert '1.5e+03 G float32 multiply-adds/s, 3e+03 G bfloat16 multiply-adds/s, copies 25 GB/s' in text
    assert text.index('## Inference') < text.index('## Training')
    (inference, ), (ours, plain) = tables(text)
    assert ours == {
        'arch': 'nano_12_p16', 'image': '64x96', 'batch': '3', 'dtype': 'float32', 'model': 'ours',
        'seconds': '0.25 (0.125 to 0.5)', 'times as fast': '1.75', 'multiply-adds, G': '2.5', 'share': '42%',
        'share of copy rate': '8%', 'saved, GiB': '0.5', 'share of saved': '0.30', 'peak, GiB': '1.5',
        'error': '1.5e-06 / 2.5e-05'}
    assert plain['model'] == 'authors' and plain['seconds'] == 'out of memory'
    assert not any(plain[name] for name in ('peak, GiB', 'error', 'share', 'times as fast'))
    assert inference['saved, GiB'] == '0' and inference['seconds'] == '1 (1 to 1)'  # nothing saved is a number
    assert inference['times ours'] == '2.25' and inference['file, MiB'] == '44.8'
    assert not {'multiply-adds, G', 'peak, GiB', 'error'} & inference.keys()  # nobody measured them


def test_growth_in_its_units():
    text = report.markdown(result_of(growth=growth()))
    assert '## Growth: nano_12_p16, inference, float32, batch 1' in text
    points, exponents = tables(text)
    assert [(row['tokens'], row['image'], row['peak, GiB']) for row in points if row['model'] == 'ours'] == [
        ('1,024', '512x512', '1'), ('4,096', '1024x1024', '16'), ('16,384', '2048x2048', '256')]
    assert points[0]['seconds'].startswith('1.02 (') and points[1]['seconds'] == 'out of memory'
    assert exponents[0] == {'model': 'ours', 'exponent of time': '1.00', 'exponent of memory': '2.00'}
    apart = growth()
    apart[1]['dtype'], apart[2]['mode'] = 'bfloat16', 'training'
    assert {key[1:]: len(cells) for key, cells in report.growths(result_of(growth=apart)).items()} == {
        ('inference', 'float32'): 1, ('inference', 'bfloat16'): 1, ('training', 'float32'): 1}


def test_the_picture_has_seconds_gib_and_pixels(monkeypatch, tmp_path):
    drawn = []
    monkeypatch.setattr(Figure, 'savefig', lambda figure, *_, **__: drawn.append(figure))
    path, = report.plot(result_of(growth=growth()), tmp_path)
    assert path == tmp_path / 'growth_nano_12_p16_inference_float32.png'
    for axes, unit, values, power in zip(drawn[0].axes, ('s', 'GiB'), ([1.024, 4.096, 16.384], [1, 16, 256]),
                                         ('1.00', '2.00'), strict=True):
        assert axes.get_ylabel().endswith(f' ({unit})') and axes.get_xlabel() == 'tokens of 16 x 16 pixels'
        line = axes.lines[0]
        assert list(line.get_xdata()) == [1024, 4096, 16384] and list(line.get_ydata()) == pytest.approx(values)
        assert line.get_label() == f'ours: tokens^{power}'
        assert (axes.get_xscale(), axes.get_yscale()) == ('log', 'log')
        slopes = {line.get_label(): list(line.get_ydata()) for line in axes.lines[-2:]}
        assert slopes == {'linear': pytest.approx([values[0] * 4**i for i in range(3)]),
                          'quadratic': pytest.approx([values[0] * 16**i for i in range(3)])}
        top, = axes.child_axes
        side, tokens = top._functions
        assert side(1024) == pytest.approx(512) and tokens(512) == pytest.approx(1024)
