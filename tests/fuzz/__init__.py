"""Random bytes for every reader: `python -m tests.fuzz`."""
