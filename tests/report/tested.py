"""What a report needs of the runner of a test, for samples that were predicted already; and its tables."""
import csv
import logging
from types import SimpleNamespace

import torch
from mmengine.config import Config
from mmengine.evaluator import BaseMetric, Evaluator

_DATASETS = dict(mmdet='CocoDataset', mmseg='BaseSegDataset', mmpretrain='CustomDataset')


def cells(path):
    """Return the rows of a CSV file."""
    with open(path, newline='', encoding='utf-8') as file:
        return list(csv.reader(file))


class Samples(list):
    """A data set of samples that have been predicted."""

    def __init__(self, samples, **more):
        super().__init__(samples)
        vars(self).update(more)


class Counting(BaseMetric):
    """A metric of a user, without figures for classes."""
    default_prefix = 'own'

    def process(self, data_batch, data_samples):
        self.results += data_samples

    def compute_metrics(self, results):
        return dict(count=len(results))


def runner_of(framework, samples, metrics=(), model=None, cfg=None, **dataset):
    """Return a runner whose model returned such samples; ``said`` has what it logs, the rest is of the data set."""
    said, meta = [], dataset.get('metainfo')
    evaluator = Evaluator([*metrics])
    evaluator.dataset_meta = meta
    cfg = Config(dict(cfg or {}, default_scope=framework, test_dataloader=dict(dataset=dict(
        type=_DATASETS.get(framework), pipeline=[dict(type='LoadImageFromFile')]))))
    logger = SimpleNamespace(info=lambda text: said.append(text), warning=lambda text, **_: said.append(text),
                             log=lambda level, text: None, level=logging.INFO)
    return SimpleNamespace(said=said, cfg=cfg, logger=logger, model=model or torch.nn.Identity(),
                           default_scope=SimpleNamespace(scope_name=framework),
                           test_loop=SimpleNamespace(evaluator=evaluator), test_evaluator=evaluator,
                           test_dataloader=SimpleNamespace(dataset=Samples(samples, **dataset)))
