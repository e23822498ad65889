import json

import numpy as np
import pytest
import torch

import federec as fr
from federec.data.generate import generate
from federec.data.mapped import read_folder, write_folder
from federec.errors import UserError
from federec.runtimes.run import fingerprint

COLUMNS = {"users": [0, 0, 1], "items": [1, 0, 1], "times": [5.0, 7.0, -1.0], "ratings": [1.0, 2.5, 3.0]}


def column(name, rows=slice(None)):
    return np.array(COLUMNS[name][rows])


@pytest.fixture
def made(tmp_path):
    """A small folder, its rows given in two blocks."""
    blocks = ({name: column(name, rows) for name in COLUMNS} for rows in (slice(2), slice(2, 3)))
    write_folder(tmp_path / "made", "made", 2, 2, 3, blocks)
    return tmp_path / "made"


def test_what_was_written_is_read_and_mapped(made):
    data = read_folder(made)
    assert (data.name, data.n_users, data.n_items, len(data), data.merged) == ("made", 2, 2, 3, 0)
    assert data.columns == {"user": "users", "item": "items", "timestamp": "times", "rating": "ratings"}
    for name, kind in (("users", "int32"), ("items", "int32"), ("times", "float64"), ("ratings", "float32")):
        values = getattr(data, name)
        assert values.tolist() == COLUMNS[name] and values.dtype == kind
        assert isinstance(values.base, np.memmap)
    assert data.user_code("1") == 1 and data.item_label(0) == 0


def test_the_digest_follows_every_column(made, tmp_path):
    digests = {read_folder(made).sha256}
    for name in COLUMNS:
        other = {key: np.roll(column(key), key == name) for key in COLUMNS}
        write_folder(tmp_path / name, "made", 2, 2, 3, [other])
        digests.add(read_folder(tmp_path / name).sha256)
    write_folder(tmp_path / "again", "made", 2, 2, 3, [{key: column(key) for key in COLUMNS}])
    assert len(digests) == 5 and read_folder(tmp_path / "again").sha256 in digests


@pytest.mark.parametrize("engine", ["torch", "fused"])
def test_training_on_a_folder_is_training_on_the_file_with_its_rows(tmp_path, engine):
    """To the last bit: codes, split, state and every user's rank."""
    generate(tmp_path / "folder", 60, 300, 1500)
    folder = fr.load(tmp_path / "folder")
    rows = zip(folder.users.tolist(), folder.items.tolist(), folder.times.tolist(), strict=True)
    text = "user,item,timestamp\n" + "".join(f"{user},{item},{time:.0f}\n" for user, item, time in rows)
    (tmp_path / "rows.csv").write_text(text)
    file = fr.load(tmp_path / "rows.csv")
    assert fingerprint(folder) == fingerprint(file)
    mapped, held = (fr.train(fr.PFedRec(dim=4), data, rounds=2, engine=engine) for data in (folder, file))
    assert all(torch.equal(ranks, held.ranks[name]) for name, ranks in mapped.ranks.items())
    states = mapped.point.state.tensors(), held.point.state.tensors()
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


def test_filters_cut_a_folder_as_they_cut_a_file(tmp_path):
    generate(tmp_path / "folder", 60, 300, 1500)
    cut = fr.load(tmp_path / "folder", min_interactions=20, k_core=2)
    assert cut.n_users < 60 and np.bincount(cut.users).min() >= 2 and np.bincount(cut.items).min() >= 2


def test_what_is_interrupted_leaves_nothing(tmp_path):
    def blocks():
        yield {name: column(name) for name in COLUMNS}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_folder(tmp_path / "made", "made", 2, 2, 6, blocks())
    assert list(tmp_path.iterdir()) == []


def damage(path, change):
    metadata = json.loads((path / "interactions.json").read_text())
    (path / "interactions.json").write_text(json.dumps(metadata | change))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: (path / "interactions.json").unlink(), "is a folder without interactions.json"),
        (lambda path: (path / "interactions.json").write_text("{}"), "interactions.json: is damaged"),
        (lambda path: damage(path, {"format": 2}), "format 2 is not known to this version"),
        (lambda path: damage(path, {"interactions": 4}), "users.npy: is not 4 values of int32"),
        (lambda path: damage(path, {"items": 1}), r"items.npy: has codes outside 0..0"),
        (lambda path: (path / "items.npy").unlink(), "has no users.npy or no items.npy"),
        (lambda path: (path / "times.npy").write_bytes(b""), "times.npy: is truncated or damaged"),
        (lambda path: np.save(path / "times.npy", np.zeros(3, np.int64)), "times.npy: is not 3 values of float64"),
        (lambda path: np.save(path / "users.npy", np.int32([0, -1, 1])), "users.npy: has codes outside 0..1"),
    ],
)
def test_a_damaged_folder_is_refused(made, spoil, message):
    spoil(made)
    with pytest.raises(UserError, match=message):
        fr.load(made)


def test_columns_of_a_folder_are_known(made):
    with pytest.raises(UserError, match="--columns is for files"):
        fr.load(made, columns={"user": "0"})


def test_nothing_is_written_over(made):
    with pytest.raises(UserError, match="exists already; choose another --out"):
        write_folder(made, "made", 2, 2, 3, [])
    assert len(read_folder(made)) == 3
