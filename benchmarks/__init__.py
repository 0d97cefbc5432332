"""Time, memory and error of XCiT compared with the authors' form and other backbones (tools/benchmark.py)."""
