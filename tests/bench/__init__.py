"""Figures as ratios against a peer in the same run; `make bench` writes build/bench.json. Never part of the tests."""
