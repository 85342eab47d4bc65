"""The builder of the Stasis image: tools tree, kernel modules, Python packages, mkosi, media.

Everything that can be cached lies below :func:`builder.host.cache_dir`, outside the clone, and may be
deleted at any time.
"""
