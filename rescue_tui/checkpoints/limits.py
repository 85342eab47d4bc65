"""Bounds on what a hostile or damaged file may make a reader do. Reaching one is a finding, never a crash."""

from __future__ import annotations

HEADER_BYTES = 100_000_000  # the largest safetensors header that the format allows
PICKLE_BYTES = 256 << 20  # the largest data.pkl or .metadata that is walked
PICKLE_OPCODES = 20_000_000
NESTING = 200
TENSORS = 1_000_000
NAME_BYTES = 4096
# A reader never holds more than this at once for a small input; payloads are streamed in source.CHUNK_BYTES.
HELD_BYTES = 48 << 20
