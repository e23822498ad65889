import errno
import os

import pytest

from federec.errors import UserError
from federec.files import cache, make_folder, read_bytes, write_atomic


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "x.txt"
    write_atomic(path, "old")
    write_atomic(path, "new ü")
    assert path.read_text(encoding="utf-8") == "new ü"
    assert [file.name for file in tmp_path.iterdir()] == ["x.txt"]


@pytest.mark.parametrize(
    ("number", "says"), [(errno.ENOSPC, "free some space"), (errno.EFBIG, "free some space"), (errno.EIO, "check")]
)
def test_a_failed_write_leaves_the_old_file_and_no_scraps(tmp_path, monkeypatch, number, says):
    path = tmp_path / "x.txt"
    write_atomic(path, "old")

    def fail(_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(UserError, match=f"x.txt: cannot be written .*{os.strerror(number)}.*{says}"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["x.txt"]


def test_ctrl_c_leaves_the_old_file_and_no_scraps(tmp_path, monkeypatch):
    path = tmp_path / "x.txt"
    write_atomic(path, "old")

    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(path, "new")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("x.txt", "old")]


def test_names_that_are_not_unicode_can_be_written(tmp_path):
    write_atomic(tmp_path / "x", os.fsdecode(b"\xff.csv"))
    assert (tmp_path / "x").read_bytes() == rb"\udcff.csv"


def test_a_folder_under_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        make_folder(tmp_path / "file" / "folder")


def test_reading_names_the_file_and_the_reason(tmp_path):
    with pytest.raises(UserError, match=r"gone: cannot be read \(No such file"):
        read_bytes(tmp_path / "gone")
    with pytest.raises(UserError, match=r"cannot be read \(Is a directory"):
        read_bytes(tmp_path)


def test_cache_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("FEDEREC_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache() == tmp_path / "federec"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache() == tmp_path / ".cache" / "federec"
