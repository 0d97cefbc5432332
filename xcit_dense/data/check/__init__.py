"""The check of a data set before it is trained on: problems, counts, a contact sheet and a cleaned copy."""
from .agreement import check_beside, check_classes
from .check import (
    check_before_test,
    check_before_training,
    check_data_set,
    check_data_sets,
    check_learned_alike,
    classified_data,
    warn_of_other_classes,
)
from .findings import ERROR, KINDS, WARNING, Finding, Report
from .outputs import draw_contact_sheet, drop_findings

__all__ = ['ERROR', 'KINDS', 'WARNING', 'Finding', 'Report', 'check_before_test',
           'check_before_training', 'check_beside', 'check_classes', 'check_data_set', 'check_data_sets',
           'check_learned_alike', 'classified_data', 'draw_contact_sheet', 'drop_findings', 'warn_of_other_classes']
