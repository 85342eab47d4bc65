"""Saves of several files: one module a layout, each with ``claims`` (is this directory one?) and ``judge``."""
