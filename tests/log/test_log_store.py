"""The store on real disks: exactly one creator, nothing half, nothing left behind."""

from __future__ import annotations

import errno
import json
import os
import pickle
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import fs

from holdfast.errors import FullDiskError, StoreError
from holdfast.log import probe as probing
from holdfast.log.store import Store


def exclusive(path: str, data: bytes) -> bool:
    """What Hadoop's create-without-overwrite does, for a store that is not local to pyarrow."""
    path = path.removeprefix("local:")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    try:
        with open(path, "xb") as file:
            file.write(data)
    except FileExistsError:
        return False
    return True


@pytest.fixture(params=["local", "arrow"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "local":
        return Store(str(tmp_path / "store"))
    return Store.on(fs.LocalFileSystem(), str(tmp_path / "store"), exclusive)


def test_the_first_creator_wins_and_its_bytes_stay(store: Store) -> None:
    assert store.put_if_absent("owner/1", b"mine")
    assert not store.put_if_absent("owner/1", b"yours")
    assert store.read("owner/1") == b"mine"
    assert store.list("owner") == ["1"]


def test_written_parts_are_read_whole_by_range_and_mapped(store: Store) -> None:
    parts = [b"ab", memoryview(b"cde"), pa.py_buffer(b"fghij"), bytearray(b"")]
    assert store.write("log/a/b.seg", parts) == 10
    assert store.read("log/a/b.seg") == b"abcdefghij"
    assert bytes(store.open("log/a/b.seg")) == b"abcdefghij"
    assert bytes(store.read_range("log/a/b.seg", 3, 4)) == b"defg"
    assert bytes(store.read_range("log/a/b.seg", 8, 99)) == b"ij"
    assert store.size("log/a/b.seg") == 10
    assert store.write("empty", []) == 0
    assert bytes(store.open("empty")) == b""


def test_listing_and_deleting(store: Store) -> None:
    for name in ("log/2", "log/1", "log/deep/3", "top"):
        store.write(name, [b"x"])
    assert store.list("log") == ["1", "2"]
    assert store.list() == ["top"]
    assert store.list_folders() == ["log"]
    assert store.list("nowhere") == store.list_folders("nowhere") == []
    store.delete(["log/1", "log/1", "never/was"])
    assert store.list("log") == ["2"]
    store.delete_folder("log")
    store.delete_folder("log")
    assert not store.exists("log/2")
    store.write("log/4", [b"x"])
    assert store.sub("log").read("4") == b"x"


def test_a_missing_file_is_named(store: Store) -> None:
    for ask in (store.read, store.open, store.size, lambda name: store.read_range(name, 0, 1)):
        with pytest.raises(StoreError, match=r"There is no file .*log/gone"):
            ask("log/gone")
    assert store.read_if_present("log/gone") is None
    assert not store.exists("log/gone")


def test_a_file_is_written_once(store: Store) -> None:
    store.write("log/a", [b"first"])
    with pytest.raises(StoreError, match="written once"):
        store.write("log/a", [b"second"])
    assert store.read("log/a") == b"first"


def test_a_failed_write_leaves_nothing(store: Store) -> None:
    def parts() -> Iterator[bytes]:
        yield b"x" * 1_000_000
        raise RuntimeError("the state could not be read")

    with pytest.raises(RuntimeError):
        store.write("log/a", parts())
    assert store.list("log") == []


def test_a_name_does_not_lead_out_of_the_store(store: Store) -> None:
    for name in ("../other", "/etc/passwd", "log/../../x"):
        with pytest.raises(ValueError, match="not a name inside"):
            store.write(name, [b""])


def test_pickled_it_is_the_same_place(store: Store) -> None:
    store.write("log/a", [b"x"])
    for again in (pickle.loads(pickle.dumps(store)), pickle.loads(pickle.dumps(store.sub("log"))).sub("")):
        assert again.uri in (store.uri, store.uri + "/log/", store.uri + "/log")
    assert pickle.loads(pickle.dumps(store.sub("log"))).read("a") == b"x"


def test_uris(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Store("state/").uri == str(tmp_path / "state")
    assert Store("file:///a%20b/c").uri == "/a b/c"
    assert Store("file:/a/b").uri == "/a/b"
    assert Store(tmp_path / "state").uri == Store("state").uri
    assert Store("state").is_local
    with pytest.raises(StoreError, match="empty string"):
        Store("")
    with pytest.raises(StoreError, match="Cannot open the store nosuch://x"):
        Store("nosuch://x")


def test_probe_accepts_a_good_store_and_leaves_nothing(store: Store) -> None:
    store.probe()
    assert store.list() == []


def test_probe_refuses_a_store_where_not_exactly_one_wins(tmp_path: Path) -> None:
    def creator(path: str, data: bytes) -> bool:
        exclusive(path, data)
        return True

    store = Store.on(fs.LocalFileSystem(), str(tmp_path / "s"), creator)
    with pytest.raises(StoreError, match="This store cannot decide"):
        store.probe()
    assert store.list() == []


def test_probe_refuses_a_store_where_the_last_one_stays(tmp_path: Path) -> None:
    """Each is told the truth as it was then, but what the first one wrote is gone."""
    lock = threading.Lock()

    def creator(path: str, data: bytes) -> bool:
        with lock:
            won = exclusive(path, data)
            if not won:
                Path(path.removeprefix("local:")).write_bytes(b"another's")
            return won

    store = Store.on(fs.LocalFileSystem(), str(tmp_path / "s"), creator)
    with pytest.raises(StoreError, match="This store cannot decide"):
        store.probe()


def test_an_answer_that_is_lost_makes_nobody_a_loser(tmp_path: Path) -> None:
    """An object store repeats a put whose answer was lost, and is told that the file exists: it is its own."""
    won: list[bool] = []

    def creator(path: str, data: bytes) -> bool:
        won.append(exclusive(path, data))
        return False

    store = Store.on(fs.LocalFileSystem(), str(tmp_path / "s"), creator)
    store.probe()
    assert sorted(won) == [False, True]
    assert store.put_if_absent("owner/1", b"mine")
    assert not store.put_if_absent("owner/1", b"yours")


def test_a_probe_that_fails_on_the_way_is_made_again(tmp_path: Path) -> None:
    failures = iter([True, False, False, True])

    def creator(path: str, data: bytes) -> bool:
        if next(failures, False):
            raise StoreError("the connection was reset")
        return exclusive(path, data)

    Store.on(fs.LocalFileSystem(), str(tmp_path / "s"), creator).probe()

    def never(path: str, data: bytes) -> bool:
        raise StoreError("the connection was reset")

    with pytest.raises(StoreError, match="the connection was reset"):
        Store.on(fs.LocalFileSystem(), str(tmp_path / "s"), never).probe()


def test_probe_refuses_a_store_that_remembers_what_was_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probing, "SEEN_SECONDS", 0.1)
    missed: set[str] = set()

    class Remembering(Store):
        def read_if_present(self, name: str) -> bytes | None:
            found = None if name in missed else super().read_if_present(name)
            if found is None:
                missed.add(name)
            return found

    store = Remembering.on(fs.LocalFileSystem(), str(tmp_path / "s"), exclusive)
    with pytest.raises(StoreError, match="remembers that there was none"):
        store.probe()
    assert store.list() == []


MOUNTS = [
    "22 1 252:0 / / rw,relatime - ext4 /dev/vda rw",
    "40 22 0:40 / /mnt/plain rw,relatime - nfs4 host:/a rw,vers=4.2,hard,local_lock=none",
    "41 22 0:41 / /mnt/careful rw,relatime - nfs4 host:/b rw,vers=4.2,lookupcache=pos,hard",
    "42 22 0:42 / /mnt/two\\040words rw - nfs host:/c rw,vers=3",
    "43 40 0:43 / /mnt/plain/disk rw - xfs /dev/vdb rw",
]


def test_an_nfs_mount_that_remembers_names_that_are_not_there_is_refused() -> None:
    for path in ("/mnt/plain/store", "/mnt/plain", "/mnt/two words/a"):
        with pytest.raises(StoreError, match=r"(?s)NFS mount.*lookupcache=positive"):
            probing.refuse_forgetful_mount(path, MOUNTS)
    for path in ("/home/store", "/mnt/careful/store", "/mnt/plain/disk/store", "/mnt/plainer"):
        probing.refuse_forgetful_mount(path, MOUNTS)
    probing.refuse_forgetful_mount("/mnt/plain/store", [])


def test_without_a_creator_a_store_elsewhere_says_so(tmp_path: Path) -> None:
    store = Store.on(fs.LocalFileSystem(), str(tmp_path))
    with pytest.raises(StoreError, match="no way to create commit/1 exactly once"):
        store.put_if_absent("commit/1", b"")
    with pytest.raises(StoreError, match="no way to create"):
        store.probe()


def test_bytes_are_synced_before_they_get_their_name_and_the_name_before_we_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story: list[tuple[str, str]] = []
    fsync, link, mkdir = os.fsync, os.link, os.mkdir

    def at(path: str) -> str:
        return os.path.relpath(path, tmp_path)

    def told_fsync(descriptor: int) -> None:
        path = at(os.readlink(f"/proc/self/fd/{descriptor}"))
        story.append(("sync", "<temporary>" if path.endswith(".tmp") else path))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", told_fsync)
    monkeypatch.setattr(os, "link", lambda a, b: (story.append(("link", at(b))), link(a, b)))
    monkeypatch.setattr(os, "mkdir", lambda path, mode: (story.append(("mkdir", at(path))), mkdir(path, mode)))
    store = Store(str(tmp_path / "s"))
    store.put_if_absent("a/1", b"x")
    assert story[1:] == [
        ("mkdir", "s"),
        ("sync", "."),
        ("mkdir", "s/a"),
        ("sync", "s"),
        ("sync", "<temporary>"),
        ("link", "s/a/1"),
        ("sync", "s/a"),
    ]
    story.clear()
    store.put_if_absent("a/1", b"y")
    assert story == [("sync", "s/a")]
    story.clear()
    store.write("a/2", [b"x"])
    assert story == [("sync", "s/a/2"), ("sync", "s/a")]
    story.clear()
    store.write("a/3", [b"x"], sync=False)
    assert story == []


def run(script: str, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), *args],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_of_eight_processes_exactly_one_wins_each_name(tmp_path: Path) -> None:
    rivals = [
        run(
            """
            import json, sys
            from holdfast.log.store import Store
            store, me = Store(sys.argv[1]), sys.argv[2].encode() * 5000
            print("ready", flush=True)
            input()
            print(json.dumps([name for name in range(40) if store.put_if_absent(f"race/{name}", me)]))
            """,
            str(tmp_path / "store"),
            str(number),
        )
        for number in range(8)
    ]
    for process in rivals:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in rivals:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    won = [json.loads(process.communicate()[0]) for process in rivals]
    assert sorted(name for names in won for name in names) == list(range(40))
    assert sum(map(bool, won)) > 1  # it was a race
    store = Store(str(tmp_path / "store"))
    for number, names in enumerate(won):
        for name in names:
            assert store.read(f"race/{name}") == str(number).encode() * 5000
    assert sorted(os.listdir(tmp_path / "store/race")) == sorted(map(str, range(40)))


def test_a_killed_creator_leaves_whole_files_only(tmp_path: Path) -> None:
    process = run(
        """
        import itertools, sys
        from holdfast.log.store import Store
        store = Store(sys.argv[1])
        for number in itertools.count():
            store.put_if_absent(f"commit/{number}", b"x" * 3_000_000)
        """,
        str(tmp_path),
    )
    store = Store(str(tmp_path))
    while len(store.list("commit")) < 3:
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert {store.size(f"commit/{name}") for name in store.list("commit")} == {3_000_000}


def test_a_full_disk_is_told_and_leaves_no_half_file(tmp_path: Path) -> None:
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", tmp_path], capture_output=True).returncode:
        pytest.skip("mount is not permitted here; the file size limit below stands for it")
    try:
        check_full(Store(str(tmp_path / "store")))
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def check_full(store: Store) -> None:
    store.write("log/fits", [b"x" * 100_000])
    with pytest.raises(FullDiskError, match=r"write .*log/toomuch"):
        store.write("log/toomuch", [b"x" * 600_000] * 4)
    with pytest.raises(FullDiskError, match=r"create .*prepare/1"):
        store.put_if_absent("prepare/1", b"x" * 2_000_000)
    assert store.list("log") == ["fits"]
    assert os.listdir(f"{store.uri}/prepare") == []
    assert store.put_if_absent("prepare/1", b"there is room again")


def test_a_file_size_limit_is_a_full_disk_too(tmp_path: Path) -> None:
    process = run(
        """
        import resource, sys
        from holdfast.log.store import Store
        from test_log_store import check_full
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
        check_full(Store(sys.argv[1]))
        print("told")
        """,
        str(tmp_path),
    )
    assert process.communicate()[0] == "told\n"


def test_a_folder_that_is_not_ours_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    store = Store(str(tmp_path / "store"))
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        with pytest.raises(StoreError, match=r"Not permitted to create .*owner/1"):
            store.put_if_absent("owner/1", b"")
    finally:
        if root:
            os.seteuid(0)
        tmp_path.chmod(0o700)


def test_a_folder_deleted_by_somebody_else_comes_back(tmp_path: Path) -> None:
    store, other = Store(str(tmp_path)), Store(str(tmp_path))
    store.write("log/1", [b"x"])
    other.delete_folder("log")
    store.write("log/2", [b"x"])
    assert store.list("log") == ["2"]


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_store_is_its_users_alone_unless_its_folder_says_that_a_group_shares_it(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        (tmp_path / "given").mkdir()
        given = stat.S_IMODE((tmp_path / "given").stat().st_mode)
        (tmp_path / "shared").mkdir()
        (tmp_path / "shared").chmod(0o2770)
        for name in ("own/store", "given", "shared/store"):
            store = Store(str(tmp_path / name))
            store.put_if_absent("job.json", b"{}")
            store.sub("main").write("log/segment", [b"rows"])
    finally:
        os.umask(before)
    modes = {str(one.relative_to(tmp_path)): stat.S_IMODE(one.stat().st_mode) for one in tmp_path.rglob("*")}
    private, shared = {"folder": 0o700, "file": 0o600}, {"folder": 0o2770, "file": 0o660}
    for name, mode in modes.items():
        kind = "folder" if (tmp_path / name).is_dir() else "file"
        assert mode == (given if name == "given" else (shared if name.startswith("shared") else private)[kind]), name


def test_a_file_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for place in ("file", "file/below"):
        with pytest.raises(StoreError, match="cannot be a store: it is a file, or in one") as refused:
            Store(str(tmp_path / place)).probe()
        assert refused.value.safe
        assert refused.value.todo
    assert (tmp_path / "file").read_text() == "mine"


def test_a_read_only_store_says_safe_and_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(StoreError, match=r"Not permitted to create .*: the file system is read-only") as refused:
        Store(str(tmp_path / "store")).probe()
    assert refused.value.safe
    assert refused.value.todo
