"""The plots of the report."""
from matplotlib.figure import Figure

from xcit_dense.gpu_report import plots
from xcit_dense.gpu_report.operators import GROUPS


def cell(mode='training', arch='small_12_p16', image=(800, 1280), **models):
    rows = [dict(name=name.replace('_compiled', ', compiled'), seconds=seconds, saved_bytes=2**30 * seconds)
            for name, seconds in models.items()]
    return dict(arch=arch, image=list(image), batch=2, dtype='bfloat16', mode=mode, rows=rows)


def result(**facts):
    return dict(facts=facts)


def profile(arch):
    part = dict(groups=dict.fromkeys(GROUPS, 0.01), least=dict(seconds=0.02), wall=1)
    return result(arch=arch, parts={'XCA': part, 'LPI': part, 'FFN': part, 'training step': part})


RESULTS = dict(
    fast=dict(small=result(cells=[cell(ours=0.5, plain=1.), cell('inference', ours=0.2, plain=0.4)]),
              again=result(cells=[cell(ours=9.)]), upernet=result(rows=[])),
    compiled=dict(small_compiled=result(cells=[cell(ours=9., ours_compiled=0.25)])),
    kernels=dict(block_p16=profile('small_12_p16'), block_p8=profile('small_12_p8')))


def drawn(monkeypatch, plot, results, file):
    """The figure that a plot saves."""
    figures, save = [], Figure.savefig
    monkeypatch.setattr(Figure, 'savefig', lambda self, *args, **options: (figures.append(self),
                                                                           save(self, *args, **options)))
    assert plot(results, file) and file.read_bytes().startswith(b'\x89PNG')
    return figures[0].axes


def heights(axes):
    return [round(bar.get_height(), 6) for bar in axes.patches]


def test_throughput(monkeypatch, tmp_path):
    training, inference = drawn(monkeypatch, plots.plot_throughput, RESULTS, tmp_path / 'a.png')
    assert heights(training) == [2, 4, 8]  # plain, ours of the first check, ours compiled of the second
    assert heights(inference) == [5, 10]
    assert training.get_title(loc='left') == 'training, 800x1280, batch 2, bfloat16'


def test_memory_is_the_peak_if_there_is_one(monkeypatch, tmp_path):
    kept, = drawn(monkeypatch, plots.plot_memory, RESULTS, tmp_path / 'a.png')
    assert heights(kept) == [1, 0.5, 0.25] and kept.get_ylabel() == 'memory kept for the backward pass (GiB)'
    peaks = cell(ours=1.)
    peaks['rows'][0]['peak_bytes'] = 2**32
    peak, = drawn(monkeypatch, plots.plot_memory, dict(fast=dict(a=result(cells=[peaks]))), tmp_path / 'b.png')
    assert heights(peak) == [4] and peak.get_ylabel() == 'peak memory (GiB)'


def test_time_is_stacked_up_to_all_of_it(monkeypatch, tmp_path):
    panels = drawn(monkeypatch, plots.plot_time, RESULTS, tmp_path / 'a.png')
    assert [len(axes.patches) for axes in panels] == [3 * len(GROUPS), len(GROUPS)] * 2
    top = max(bar.get_y() + bar.get_height() for bar in panels[0].patches)
    assert round(top, 6) == 10 * len(GROUPS)
    assert {line[0][1] for floor in panels[0].collections for line in floor.get_segments()} == {20}


def test_only_what_was_measured_is_plotted(tmp_path):
    assert plots.plot_all({}, tmp_path) == []
    failed = cell(ours=1.)
    failed['rows'] = [dict(name='ours', failed='out of memory')]
    assert plots.plot_all(dict(fast=dict(a=result(cells=[failed])), kernels=dict(b=result())), tmp_path) == []
    assert [file.name for file in plots.plot_all(RESULTS, tmp_path)] == list(plots.PLOTS)
