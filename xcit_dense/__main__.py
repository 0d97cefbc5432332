"""``python -m xcit_dense TOOL ...``"""
from .cli import main

main()
