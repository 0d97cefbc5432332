"""Trainings whose backbone runs as CUDA graphs, which `helpers.graphs` replays on a CPU."""
from helpers.graphs import Again, replay_on_cpus
from helpers.paths import TINY_SEG_CONFIG
from helpers.runs import CASES, assert_same_run, make_config, stop_after, train, whole_run
from xcit_dense.config.options import add_hook
from xcit_dense.models import graphs


def test_stopped_and_resumed_is_the_run_without_graphs_to_the_last_bit(
        demo_data, tmp_path, tmp_path_factory, monkeypatch):
    wanted = whole_run('iterations_loaded', demo_data, tmp_path_factory)
    replay_on_cpus(monkeypatch)
    monkeypatch.setattr(graphs, 'AFTER', 0)
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path, **CASES['iterations_loaded'])
    add_hook(cfg, 'CUDAGraphHook')
    stop_after(3, cfg)
    before = Again.replays
    assert before >= 4  # forward and backward
    assert_same_run(train(cfg, resume=True), wanted)
    assert Again.replays > before
