"""Write the pre-made TensorFlow and Orbax samples with the real writers.

Run with an interpreter that has tensorflow-cpu, jax and orbax-checkpoint: ``python make_tf.py DIRECTORY``. Each sample
is a tar; ``values.json`` in it holds every tensor as dtype, shape and hexadecimal bytes.
"""

from __future__ import annotations

import json
import shutil
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np

SEED = 20260


def _expected(values: dict[str, Any]) -> str:
    return json.dumps({
        name: {"dtype": str(np.asarray(value).dtype), "shape": list(np.asarray(value).shape),
               "bytes": np.ascontiguousarray(value).tobytes().hex()} for name, value in values.items()}, indent=0)


def tensorflow(root: Path) -> None:
    """Bundles: every dtype, strings, a partitioned variable, several shards, a table with several blocks."""
    import tensorflow as tf

    rng = np.random.default_rng(SEED)
    target = root / "tf-dtypes"
    target.mkdir()
    values: dict[str, Any] = {}
    for dtype in ("float64", "float32", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "uint16",
                  "uint32", "uint64", "bool", "complex64", "complex128", "float8_e5m2", "float8_e4m3fn"):
        kind = tf.dtypes.as_dtype(dtype).as_numpy_dtype
        values[f"v/{dtype}"] = rng.normal(0, 40, (3, 5)).astype(np.float64).clip(0, 100).astype(kind)
    values["scalar"] = np.int64(-7)
    values["empty"] = np.zeros((0, 4), np.float32)
    names = [*values, "strings", "no_strings", "one_string"]
    tensors = [*values.values(), np.array([[b"a", b""], [b"long" * 100, b"\x00\xff"]], object), np.array([], object),
               np.array(b"alone", object)]
    lists = tf.raw_ops.TensorListFromTensor(tensor=tf.constant([[1.0, 2.0], [3.0, 4.0]]),
                                            element_shape=tf.constant([2], tf.int32))
    written = [tf.constant(t) if t.dtype != object else tf.constant(t, tf.string) for t in tensors]
    tf.raw_ops.SaveV2(prefix=str(target / "all"), tensor_names=[*names, "variant"],
                      shape_and_slices=[""] * (len(names) + 1), tensors=[*written, lists])
    part = rng.normal(size=(200, 3)).astype(np.float32)
    tf.raw_ops.SaveV2(prefix=str(target / "parts"), tensor_names=["w\x00\xff", "w\x00\xff", "w\x00\xff", "b"],
                      shape_and_slices=["200 3 0,70:-", "200 3 70,100:-", "200 3 170,30:-", ""],
                      tensors=[part[:70], part[70:170], part[170:], np.arange(4.0)])
    values["w\x00\xff"] = part
    values["b"] = np.arange(4.0)
    (target / "values.json").write_text(_expected(values), "utf-8")

    target = root / "tf-sharded"
    target.mkdir()
    pieces = {f"w{index}": rng.normal(size=(64,)).astype(np.float32) for index in range(4)}
    for shard in range(2):
        mine = list(pieces)[shard::2]
        tf.raw_ops.SaveV2(prefix=str(target / f"ckpt-3_temp/part-{shard:05d}-of-00002"), tensor_names=mine,
                          shape_and_slices=[""] * 2, tensors=[pieces[name] for name in mine])
    shutil.copytree(target / "ckpt-3_temp", target / "unmerged_temp")
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=[str(target / f"ckpt-3_temp/part-{shard:05d}-of-00002") for shard in range(2)],
        destination_prefix=str(target / "ckpt-3"), delete_old_dirs=True)
    (target / "values.json").write_text(_expected(pieces), "utf-8")

    target = root / "tf-object"
    target.mkdir()
    model = tf.train.Checkpoint(step=tf.Variable(12, dtype=tf.int64), w=tf.Variable(rng.normal(size=(4, 4))))
    tf.train.CheckpointManager(model, str(target), 2).save()
    (target / "values.json").write_text(_expected({
        "w/.ATTRIBUTES/VARIABLE_VALUE": model.w.numpy(), "step/.ATTRIBUTES/VARIABLE_VALUE": model.step.numpy()}),
        "utf-8")


def orbax(root: Path) -> None:
    """Orbax: OCDBT with several chunks, zarr 3 with shards, one file per chunk, a manager's run with two items."""
    import jax
    import jax.numpy as jnp
    import orbax.checkpoint as ocp

    rng = np.random.default_rng(SEED)
    kernel = jnp.asarray(rng.normal(size=(48, 40)), jnp.float32)
    bias = jnp.asarray(rng.normal(size=(40,)), jnp.float32)
    half = jnp.asarray(rng.normal(size=(40, 20)), jnp.bfloat16)
    zeros = jnp.zeros((30, 30), jnp.float32)
    state = {"params": {"dense": {"kernel": kernel, "bias": bias}, "half": half},
             "opt": [jnp.arange(3), {"mu": zeros}], "step": 17, "lr": 0.25, "name": "run"}
    flat = {"params.dense.kernel": kernel, "params.dense.bias": bias, "params.half": half,
            "opt.0": np.arange(3, dtype=np.int32), "opt.1.mu": zeros, "step": np.int64(17), "lr": np.float64(0.25)}
    for name, options in (
            ("orbax-ocdbt", {}), ("orbax-zarr3", {"use_zarr3": True}), ("orbax-files", {"use_ocdbt": False}),
            ("orbax-files3", {"use_ocdbt": False, "use_zarr3": True})):
        target = root / name
        target.mkdir()
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**options)) as checkpointer:
            chunked = jax.tree.map(lambda _: ocp.SaveArgs(chunk_byte_size=2000), state)
            checkpointer.save((target / "step_17").resolve(), ocp.args.PyTreeSave(state, save_args=chunked))
        (target / "values.json").write_text(_expected(flat), "utf-8")
    target = root / "orbax-run"
    with ocp.CheckpointManager((target / "run").resolve(), item_names=("state", "extra")) as manager:
        for step in (1, 2):
            manager.save(step, args=ocp.args.Composite(
                state=ocp.args.StandardSave({"w": jnp.full((30, 30), step, jnp.float32) + jnp.arange(30.0)}),
                extra=ocp.args.JsonSave({"epoch": step})))
    (target / "values.json").write_text(_expected(
        {"w": np.full((30, 30), 2, np.float32) + np.arange(30, dtype=np.float32)}), "utf-8")


def zarr(root: Path) -> None:
    """Arrays of zarr 3 and 2 in one directory: every codec, edges, shards, transposed axes."""
    import tensorstore as ts  # type: ignore[import-not-found, unused-ignore]

    rng = np.random.default_rng(SEED)
    target = root / "zarr-codecs"
    values: dict[str, Any] = {}
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    zstd = {"name": "zstd", "configuration": {"level": 3, "checksum": True}}
    index = [little, {"name": "crc32c"}]
    for name, codecs in {
        "plain": [little],
        "big": [{"name": "bytes", "configuration": {"endian": "big"}}],
        "crc": [little, {"name": "crc32c"}],
        "zstd": [little, zstd],
        "gzip": [little, {"name": "gzip", "configuration": {"level": 5}}],
        "blosc": [little, {"name": "blosc", "configuration": {
            "cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": 4, "blocksize": 0}}],
        "zstdcrc": [little, zstd, {"name": "crc32c"}],
        "turned": [{"name": "transpose", "configuration": {"order": [1, 0]}}, little, {"name": "crc32c"}],
        "shards": [{"name": "sharding_indexed", "configuration": {
            "chunk_shape": [4, 4], "codecs": [little, {"name": "crc32c"}], "index_codecs": index}}],
        "first": [{"name": "sharding_indexed", "configuration": {
            "chunk_shape": [4, 8], "codecs": [little, zstd], "index_codecs": index, "index_location": "start"}}],
    }.items():
        values[name] = rng.normal(size=(11, 13)).astype(np.float32)
        metadata = {"shape": [11, 13], "data_type": "float32", "codecs": codecs,
                    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [8, 8]}}}
        store = ts.open({"driver": "zarr3", "kvstore": f"file://{(target / name).resolve()}/", "create": True,
                         "metadata": metadata}).result()
        store.write(values[name]).result()
    values["two"] = rng.normal(size=(5, 3)).astype(np.float64)
    metadata = {"shape": [5, 3], "chunks": [2, 3], "dtype": ">f8", "order": "F",
                "compressor": {"id": "zlib", "level": 3}}
    store = ts.open({"driver": "zarr", "kvstore": f"file://{(target / 'two').resolve()}/", "create": True,
                     "metadata": metadata}).result()
    store.write(values["two"]).result()
    (target / "values.json").write_text(_expected(values), "utf-8")


def ocdbt(root: Path) -> None:
    """Databases with several levels of nodes: compressed or not, with one manifest or numbered ones."""
    import tensorstore as ts  # type: ignore[import-not-found, unused-ignore]

    target = root / "ocdbt-deep"
    target.mkdir()
    values = {f"layer/{number:03d}/{'x' * (number % 7)}": bytes((number,)) * (number % 40) for number in range(200)}
    kinds: dict[str, dict[str, Any]] = {
        "raw": {"compression": None}, "packed": {}, "numbered": {"manifest_kind": "numbered"}}
    for name, config in kinds.items():
        store = ts.KvStore.open({
            "driver": "ocdbt", "base": f"file://{(target / name).resolve()}/",
            "config": {"max_inline_value_bytes": 20, "max_decoded_node_bytes": 500, "version_tree_arity_log2": 1,
                       **config},
        }).result()
        for keys in (list(values)[::3], list(values)[1::3], list(values)[2::3]):
            with ts.Transaction() as transaction:
                for key in keys:
                    store.with_transaction(transaction)[key] = values[key]
    (target / "values.json").write_text(_expected(
        {key: np.frombuffer(value, np.uint8) for key, value in values.items()}), "utf-8")


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def main() -> None:
    """Write everything below the directory that is named."""
    root = Path(sys.argv[1])
    root.mkdir(parents=True, exist_ok=True)
    tensorflow(root)
    orbax(root)
    zarr(root)
    ocdbt(root)
    # Its text is the path that it was written to.
    for marker in root.rglob("commit_success.txt"):
        marker.write_text("Checkpoint commit was successful", "utf-8")
    for sample in sorted(path for path in root.iterdir() if path.is_dir()):
        with tarfile.open(root / f"{sample.name}.tar.gz", "w:gz") as archive:
            archive.add(sample, sample.name, filter=_anonymous)
        shutil.rmtree(sample)


if __name__ == "__main__":
    main()
