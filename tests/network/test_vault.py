"""A vault shows nothing without its key, notices damage, and is before or after a change, never in between."""

import os
import shutil
import sqlite3
import stat
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("cryptography", reason="pip install federec[flower]")

from federec.errors import UserError
from federec.network.keys import Key
from federec.network.vault import Vault, lock_of

KEY = Key("file", b"k" * 32, "/somewhere/a.key")


@pytest.fixture
def vault(tmp_path):
    vault = Vault.create(tmp_path / "v.db", KEY)
    with vault.change():
        vault.put("first", b"the quick brown fox" * 20)
        vault.put("second", b"jumps over the lazy dog" * 200)
    return vault


def contents(vault):
    return {name: vault.get(name) for name in vault.names()}


def raw(folder):
    return b"".join(file.read_bytes() for file in sorted(folder.iterdir()))


def test_values_are_there_again_and_nowhere_in_the_files(vault, tmp_path):
    before = contents(vault)
    assert len(before) == 2
    for close in (lambda: None, vault.close):
        close()
        assert b"quick" not in raw(tmp_path)
        assert b"lazy" not in raw(tmp_path)
    assert contents(Vault(vault.file, KEY)) == before


def test_only_the_owner_may_read_the_files(vault, tmp_path):
    files = list(tmp_path.iterdir())
    assert len(files) == 3  # the log and its index beside the database
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)


def test_the_same_value_is_never_written_alike(vault, tmp_path):
    def sealed():
        return sqlite3.connect(vault.file).execute("SELECT value FROM sealed WHERE name = 'first'").fetchone()[0]

    first = sealed()
    with vault.change():
        vault.put("first", vault.get("first"))
    assert sealed() != first


def test_another_key_does_not_open_it(vault):
    for key, says in (
        (Key("file", b"x" * 32), "this file does not open it"),
        (Key.passphrase("long enough"), "is locked with a file, not with a passphrase"),
    ):
        with pytest.raises(UserError, match=says):
            Vault(vault.file, key)
    assert (lock_of(vault.file).kind, lock_of(vault.file).place) == ("file", "/somewhere/a.key")


def test_a_damaged_index_hides_no_value(vault):
    held = contents(vault)
    vault.close()
    data = vault.file.read_bytes()
    places = [at for at in range(len(data)) if data.startswith(b"first", at)]
    assert len(places) == 2  # the row, and the index that leads to it
    for at in places:
        vault.file.write_bytes(data[:at] + b"fjrst" + data[at + 5 :])
        with pytest.raises(UserError, match="is damaged"):
            Vault(vault.file, KEY)
    vault.file.write_bytes(data)
    assert contents(Vault(vault.file, KEY)) == held


def test_values_cannot_change_places(vault):
    db = sqlite3.connect(vault.file, isolation_level=None)
    db.execute("UPDATE sealed SET name = 'third' WHERE name = 'first'")
    with pytest.raises(UserError, match=r"v\.db: is damaged"):
        Vault(vault.file, KEY)


def test_a_change_that_fails_is_no_change(vault):
    before = contents(vault)
    for failure in (KeyboardInterrupt, UserError):
        with pytest.raises(failure), vault.change():
            vault.put("first", b"new")
            vault.delete("second")
            raise failure
        assert contents(vault) == before == contents(Vault(vault.file, KEY))


def test_a_full_disk_is_told_and_changes_nothing(vault):
    before = contents(vault)
    vault._db.execute("PRAGMA max_page_count = 12")
    with pytest.raises(UserError, match="full; free some space"), vault.change():
        vault.put("first", b"1")
        vault.put("third", os.urandom(200_000))
    assert contents(vault) == before == contents(Vault(vault.file, KEY))


def test_a_kill_at_any_byte_of_the_log_leaves_before_or_after(vault, tmp_path):
    """The log of one change, cut off anywhere: what a power cut in the middle of it would leave."""
    vault.scrub()
    before = contents(vault)
    with vault.change():
        vault.put("first", b"new")
        vault.delete("second")
        vault.put("third", bytes(9000))
    after = contents(vault)
    log = (tmp_path / "v.db-wal").read_bytes()
    frame = 4096 + 24
    assert (len(log) - 32) % frame == 0
    ends = {*range(0, len(log), 397), *range(32, len(log), frame), *range(31, len(log), frame), len(log)}
    found = []
    for end in sorted(ends):
        folder = tmp_path / "copy"
        folder.mkdir()
        shutil.copy(vault.file, folder)
        (folder / "v.db-wal").write_bytes(log[:end])
        found.append(contents(Vault(folder / "v.db", KEY)))
        shutil.rmtree(folder)
    assert found[-1] == after
    assert found.index(after) == len(found) - 1
    assert all(state == before for state in found[:-1])


def test_nothing_erased_is_left_in_the_files(vault, tmp_path):
    def pieces():
        rows = sqlite3.connect(vault.file).execute("SELECT value FROM sealed WHERE name IN ('first', 'second')")
        return [value[i : i + 24] for (value,) in rows for i in range(0, len(value) - 24, 24)]

    old = pieces()
    assert all(piece in raw(tmp_path) for piece in old[:10])
    with vault.change():
        vault.delete("second")
        vault.put("first", b"short")
    vault.scrub()
    for close in (lambda: None, vault.close):
        close()
        assert not any(piece in raw(tmp_path) for piece in old)


@pytest.mark.parametrize("text", [b'{"kind": "file"', b"CREATE TABLE sealed", b"sqlite_autoindex_sealed"])
def test_no_byte_that_can_be_read_without_the_key_makes_it_fall_over(vault, text):
    held = contents(vault)
    vault.close()
    data = vault.file.read_bytes()
    at = data.index(text)
    for place in range(at, at + len(text)):
        for byte in (0, 10, 88, 200):
            vault.file.write_bytes(data[:place] + bytes([byte]) + data[place + 1 :])
            try:
                assert contents(Vault(vault.file, KEY)) == held
            except UserError as error:
                assert "\n" not in str(error)
            try:
                lock_of(vault.file)
            except UserError as error:
                assert "is damaged" in str(error)


DAMAGE = {
    "empty": lambda data: b"",
    "halved": lambda data: data[: len(data) // 2],
    "garbage": lambda data: bytes(range(256)) * 40,
    "a page of zeros": lambda data: data[:4096] + bytes(4096) + data[8192:],
    "something else": lambda data: b"hello",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_told_with_the_remedy(vault, damage):
    vault.close()
    vault.file.write_bytes(DAMAGE[damage](vault.file.read_bytes()))
    with pytest.raises(UserError, match=r"v\.db: is damaged; bring back a copy .* federec device init"):
        Vault(vault.file, KEY)


@pytest.fixture
def closed(vault):
    """A vault's file and what it holds."""
    held = contents(vault)
    vault.close()
    return vault.file.read_bytes(), held


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(where=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_a_flipped_byte_is_noticed_or_harmless(closed, tmp_path, where, flip):
    data, held = bytearray(closed[0]), closed[1]
    data[int(where * len(data))] ^= flip
    for file in tmp_path.iterdir():
        file.unlink(missing_ok=True)  # SQLite takes its own away when it closes the copy before this one
    (tmp_path / "copy.db").write_bytes(data)
    try:
        assert contents(Vault(tmp_path / "copy.db", KEY)) == held
    except UserError as error:
        assert "\n" not in str(error)


def test_processes_take_turns(vault):
    def work(number):
        own = Vault(vault.file, KEY)
        for _ in range(20):
            with own.change():
                own.put("count", str(int(own.get("count") or 0) + 1).encode())
        own.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert vault.get("count") == b"60"
