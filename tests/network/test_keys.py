"""Where keys come from, and what is refused as a key."""

import stat
import sys

import pytest

from federec.errors import UserError
from federec.network.keys import Key, key_folder


def test_a_new_key_file_is_its_owners_alone(tmp_path):
    key = Key.new_file(tmp_path / "keys" / "a.key")
    assert stat.S_IMODE((tmp_path / "keys" / "a.key").stat().st_mode) == 0o600
    assert Key.file(tmp_path / "keys" / "a.key") == key
    assert len(key.secret) == 32
    assert Key.new_file(tmp_path / "b.key").secret != key.secret
    with pytest.raises(UserError, match="a key is never overwritten"):
        Key.new_file(tmp_path / "keys" / "a.key")
    key.destroy()
    assert not (tmp_path / "keys" / "a.key").exists()


@pytest.mark.parametrize("text", ["", "hello", "ab" * 31, "ab" * 33, "\0" * 64])
def test_what_is_no_key_file(tmp_path, text):
    (tmp_path / "a.key").write_text(text)
    (tmp_path / "a.key").chmod(0o600)
    with pytest.raises(UserError, match=r"a\.key: is not a key file"):
        Key.file(tmp_path / "a.key")


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
def test_a_key_that_others_may_read_is_refused(tmp_path, mode):
    Key.new_file(tmp_path / "a.key")
    (tmp_path / "a.key").chmod(mode)
    with pytest.raises(UserError, match="others may read this key; forbid it with: chmod 600"):
        Key.file(tmp_path / "a.key")


def test_derived_keys_differ_by_secret_salt_and_kind():
    keys = [Key("file", b"long enough"), Key("file", b"long enougi"), Key.passphrase("long enough")]
    derived = {key.derive(salt) for key in keys for salt in (b"salt" * 4, b"tlas" * 4)}
    assert len(derived) == 6
    assert all(len(value) == 32 for value in derived)
    assert Key.passphrase("long enough").derive(b"salt" * 4) in derived


def test_short_passphrases_are_refused():
    with pytest.raises(UserError, match="at least 8 characters"):
        Key.passphrase("short")


def test_a_key_does_not_show_its_secret():
    assert "enough" not in repr(Key.passphrase("long enough"))


def test_the_key_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("FEDEREC_KEYS", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert key_folder() == tmp_path / "federec" / "keys"
    monkeypatch.setenv("FEDEREC_KEYS", str(tmp_path / "own"))
    assert key_folder() == tmp_path / "own"


class Ring:
    """Stands in for the package `keyring`, whose back ends need a desktop."""

    def __init__(self, fails=""):
        self.held, self.fails = {}, fails

    def set_password(self, service, name, secret):
        if self.fails:
            raise RuntimeError(self.fails)
        self.held[service, name] = secret

    def get_password(self, service, name):
        return self.held.get((service, name))

    def delete_password(self, service, name):
        del self.held[service, name]


def test_the_key_ring(monkeypatch):
    ring = Ring()
    monkeypatch.setitem(sys.modules, "keyring", ring)
    key = Key.new_ring()
    assert Key.ring(key.place) == key
    assert [(service, len(secret)) for (service, _), secret in ring.held.items()] == [("federec", 64)]
    key.destroy()
    with pytest.raises(UserError, match=f"the key ring has no key '{key.place}'"):
        Key.ring(key.place)


def test_a_key_ring_that_is_not_there(monkeypatch):
    monkeypatch.setitem(sys.modules, "keyring", Ring(fails="No recommended backend\nwas available"))
    with pytest.raises(UserError, match=r"cannot be used \(No recommended backend was available\); use a key file"):
        Key.new_ring()
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(UserError, match="pip install keyring"):
        Key.ring("a")
