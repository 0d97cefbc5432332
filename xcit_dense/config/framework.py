"""Which framework a config is for."""
from ..tasks import task_of


def framework_of(cfg):
    """Return the framework of a config's task."""
    return task_of(cfg).framework
