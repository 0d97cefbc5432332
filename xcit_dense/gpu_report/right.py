"""Whether results on the device are right: against golden tensors, float64 and the plain path."""
from .checks import Check
from .right_forms import compiled, fast, fused
from .right_steps import deterministic, memory, waits
from .right_values import float64, golden, half_types

#: The checks in the order in which they run.
CHECKS = (
    Check('golden', "Outputs and gradients in float32 against the authors' golden tensors", golden, 1),
    Check('float64', 'Outputs and gradients in float32 against float64 on a CPU', float64, 1),
    Check('half_types', 'Errors of bfloat16 and float16 beside those of the plain form', half_types, 1),
    Check('fast_path', 'The fast path against the plain one', fast, 1),
    Check('fused', 'A fused model against itself before', fused, 1),
    Check('sync', 'No waiting for the device in forward and backward', waits, 1),
    Check('deterministic', 'The same bits twice in deterministic mode', deterministic, 1),
    Check('memory', 'Memory after 200 steps of varying sizes as after 20', memory, 1.5),
    Check('compiled', 'Compiled models against eager ones, and how often they are compiled', compiled, 4))
