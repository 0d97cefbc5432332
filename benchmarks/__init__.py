"""Time, memory and error of XCiT compared with its released form and other backbones (tools/benchmark.py)."""
