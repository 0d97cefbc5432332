"""Time, memory and error of XCiT beside its released form and other backbones (tools/benchmark.py)."""
