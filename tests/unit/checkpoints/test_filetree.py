"""A real directory as readers see it: nothing leads out of it, and only regular files are ever opened."""

from __future__ import annotations

import errno
import gc
import os
import socket
from pathlib import Path

import pytest

from rescue_tui.checkpoints.source import EndOfBytes, UnreadableBytes
from rescue_tui.checkpoints.tree import Kind
from rescue_tui.system.filetree import FileTree


@pytest.fixture
def root(tmp_path: Path) -> Path:
    place = tmp_path / "root"
    (place / "a" / "b").mkdir(parents=True)
    (place / "a" / "b" / "x.pt").write_bytes(b"0123456789")
    (tmp_path / "outside.pt").write_bytes(b"secret")
    return place


def test_listing_and_names_and_reading(root: Path) -> None:
    tree = FileTree(root)
    (entry,) = tree.listing("a/b")
    assert (entry.path, entry.kind, entry.size_bytes) == ("a/b/x.pt", Kind.FILE, 10)
    assert [one.path for one in tree.listing("")] == ["a"]
    assert [one.path for one in tree.listing("")] == ["a"]
    assert tree.names("a").directories == ("b",)
    assert tree.sizes("a/b", ["x.pt", "gone"]) == [10, 0]
    with tree.open("a/b/x.pt") as source:
        assert source.read_at(2, 3) == b"234"
        assert list(source.chunks(0, 10)) == [b"0123456789"]
        assert source.holes(0, 10) == ()
        with pytest.raises(EndOfBytes):
            source.read_at(5, 6)
    assert tree.listing("nowhere") == ()


@pytest.mark.parametrize("target", ["../../outside.pt", "/etc/passwd", "../../../outside.pt", "loop.pt", "gone.pt"])
def test_links_out_of_the_tree_are_not_followed(root: Path, target: str) -> None:
    (root / "a" / "loop.pt").symlink_to(target)
    with pytest.raises(UnreadableBytes):
        FileTree(root).open("a/loop.pt")


def test_links_within_the_tree_are(root: Path) -> None:
    (root / "link.pt").symlink_to("a/./b/../b/x.pt")
    with FileTree(root).open("link.pt") as source:
        assert source.name == "link.pt"
        assert source.size_bytes == 10


def test_directories_that_are_links_are_not_entered(root: Path) -> None:
    (root / "outside").symlink_to("..")
    tree = FileTree(root)
    with pytest.raises(UnreadableBytes):
        tree.open("outside/outside.pt")
    assert tree.listing("outside") == ()
    assert tree.names("").links == ("outside",)


@pytest.mark.parametrize("path", ["../outside.pt", "a/../../outside.pt", "a/b/../../../outside.pt", "a\x00b", ".."])
def test_paths_out_of_the_tree_are_refused(root: Path, path: str) -> None:
    with pytest.raises(UnreadableBytes):
        FileTree(root).open(path)


def test_pipes_sockets_and_directories_are_never_opened(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(root / "a" / "pipe.pt")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(root / "a" / "s.pt"))
    tree = FileTree(root)
    assert tree.names("a").files == ()
    opened: list[str] = []
    real = os.open

    def watch(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        opened.append(path)
        assert not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", watch)
    for name in ("pipe.pt", "s.pt", "b"):
        with pytest.raises(UnreadableBytes):
            tree.open(f"a/{name}")
    assert not {"pipe.pt", "s.pt", "b"} & set(opened)


def test_every_open_is_read_only(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags_seen: list[int] = []
    real = os.open

    def watch(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        flags_seen.append(flags)
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", watch)
    tree = FileTree(root)
    tree.names("a/b")
    with tree.open("a/b/x.pt"):
        pass
    assert flags_seen
    assert all(flags & os.O_ACCMODE == os.O_RDONLY and flags & os.O_CLOEXEC for flags in flags_seen)


def test_a_failing_medium_is_unreadable_bytes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = FileTree(root).open("a/b/x.pt")

    def fail(descriptor: int, length: int, offset: int) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pread", fail)
    with pytest.raises(UnreadableBytes) as caught:
        source.read_at(4, 2)
    assert (caught.value.offset, caught.value.length) == (4, 2)


def test_a_file_that_shrinks_ends_early(root: Path) -> None:
    source = FileTree(root).open("a/b/x.pt")
    os.truncate(root / "a/b/x.pt", 4)
    with pytest.raises(EndOfBytes):
        source.read_at(0, 10)


def test_holes_are_told(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as stream:
        stream.write(b"x" * 65536)
        stream.seek(1 << 20)
        stream.write(b"y" * 65536)
        stream.truncate(2 << 20)
    source = FileTree(tmp_path).open("sparse")
    holes = source.holes(0, 2 << 20)
    if not holes:
        pytest.skip("this file system does not tell of holes")
    assert [(hole.offset, hole.end) for hole in holes] == [(65536, 1 << 20), ((1 << 20) + 65536, 2 << 20)]
    assert source.holes(0, 65536) == ()
    assert [(hole.offset, hole.end) for hole in source.holes(100_000, 10)] == [(100_000, 100_010)]


def test_descriptors_are_given_back(root: Path) -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        tree = FileTree(root)
        tree.names("a/b")
        tree.open("a/b/x.pt")
        tree.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_bytes_read_are_told(root: Path) -> None:
    counts: list[int] = []
    with FileTree(root, counts.append).open("a/b/x.pt") as source:
        source.read_at(0, 10)
        source.read_at(3, 2)
    assert counts == [10, 2]


def test_names_that_are_no_utf8_survive(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"a\xff.pt")).write_bytes(b"x")
    tree = FileTree(tmp_path)
    (name,) = tree.names("").files
    with tree.open(name) as source:
        assert source.read_at(0, 1) == b"x"


def test_a_small_file_that_can_not_be_read_at_once_is_read_part_by_part(root: Path,
                                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pread

    def pread(descriptor: int, length: int, offset: int) -> bytes:
        if offset <= 4 < offset + length:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(descriptor, length, offset)

    monkeypatch.setattr(os, "pread", pread)
    with FileTree(root).open("a/b/x.pt") as source:
        assert [source.read_at(0, 4), source.read_at(5, 5), source.read_at(0, 2)] == [b"0123", b"56789", b"01"]
        with pytest.raises(UnreadableBytes) as told:
            source.read_at(3, 3)
    assert (told.value.offset, told.value.length) == (3, 3)


def test_a_small_file_that_shrank_ends_where_it_ends_now(root: Path) -> None:
    with FileTree(root).open("a/b/x.pt") as source:
        os.truncate(root / "a" / "b" / "x.pt", 6)
        assert [source.read_at(0, 4), source.read_at(2, 4)] == [b"0123", b"2345"]
        with pytest.raises(EndOfBytes):
            source.read_at(2, 5)
