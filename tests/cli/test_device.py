"""federec device: what it says, what it refuses, and that it says so in one line."""

import io
import json
import re

import pytest

pytest.importorskip("cryptography", reason="pip install federec[flower]")


@pytest.fixture(autouse=True)
def place(monkeypatch, tmp_path):
    """Folder and keys of these tests; no terminal to ask."""
    monkeypatch.setenv("FEDEREC_KEYS", str(tmp_path / "keys"))
    monkeypatch.setenv("FEDEREC_DEVICE", str(tmp_path / "device"))
    monkeypatch.delenv("FEDEREC_PASSPHRASE", raising=False)
    return tmp_path


@pytest.fixture
def catalogue(tmp_path):
    path = tmp_path / "catalogue.json"
    items = [f"m{number}" for number in range(30)]
    path.write_text(json.dumps({"items": items, "titles": {"m7": "Heat (1995)"}}))
    return path


@pytest.fixture
def phone(federec, catalogue):
    """A device of one user."""
    assert federec("device", "init", "--catalogue", catalogue).code == 0


def keys(place):
    return sorted((place / "keys").glob("*.key")) if (place / "keys").exists() else []


def test_from_init_to_forget(federec, refused, place, phone):
    assert len(keys(place)) == 1
    assert federec("device", "add", "m3").out == "recorded 'm3'; interactions: 1\n"
    assert "not a finite number" in refused("device", "add", "m7", "--rating", "nan")
    assert federec("device", "add", "m7", "--rating", 4.5).out == "recorded 'm7' (Heat (1995)); interactions: 2\n"
    said = federec("device", "status").out
    for words in ("users +me", "interactions +2", "30 items, version 30-", "learned +nothing yet", r"\d kB"):
        assert re.search(words, said), said
    assert keys(place)[0].read_text().strip() not in said
    said = federec("device", "forget", "m3").out
    assert said == "forgot 'm3' and the private parameters; interactions left: 1\n"
    assert "'m3' is not among the interactions of 'me'; nothing was erased" in refused("device", "forget", "m3")
    assert "nothing was learned here yet; take part in a federation first" in refused("device", "recommend")
    assert federec("device", "forget", "--everything", "--yes").out.endswith("device: erased\nits key: erased\n")
    assert not (place / "device").exists()
    assert keys(place) == []
    assert "is not a device folder" in refused("device", "status")


def test_status_says_what_noise_has_used_up(federec, place, phone):
    from federec.network.device_folder import DeviceFolder
    from federec.network.keys import Key
    from federec.network.ledger import Answer

    assert json.loads(federec("device", "status", "--json").out)["took part"] == "in 0 rounds of 0 runs"
    device = DeviceFolder.open(place / "device", Key.file(keys(place)[0]))
    for round_ in (1, 2):
        with device.change():
            device.ledger.keep("train", Answer("films", round_, "", b""), rho=0.08)
    device.close()
    said = "in 2 rounds of 1 run; noise has used up epsilon 3.13 (delta 1e-06)"  # 0.16 + 2 sqrt(0.16 ln 10^6)
    assert json.loads(federec("device", "status", "--json").out)["took part"] == said


def test_items_that_are_not_there(refused, phone):
    assert "no item is called 'm77' - did you mean 'm7' (Heat (1995))?" in refused("device", "add", "m77")
    assert "did you mean 'm7' (Heat (1995))?" in refused("device", "add", "heat 1995")
    assert "no item is called 'Xyzzy'; the 30 items are like m0, m1, m2" in refused("device", "add", "Xyzzy")
    assert "no item is called 'Xyzzy'" in refused("device", "forget", "Xyzzy")


def test_a_device_of_several_users(federec, refused, catalogue):
    federec("device", "init", "--catalogue", catalogue, "--user", "ann", "--user", "bob")
    assert "hosts 2 users; say which one is meant with --user" in refused("device", "add", "m1")
    assert "did you mean 'bob'?" in refused("device", "add", "m1", "--user", "bop")
    assert federec("device", "add", "m1", "--user", "bob").code == 0
    assert federec("device", "add", "m1", "--user", "ann").code == 0
    said = federec("device", "forget", "--everything", "--user", "ann", "--yes").out
    assert said == "forgot everything and the private parameters; interactions left: 0\n"
    assert re.search("interactions +1", federec("device", "status").out)


def test_a_share_of_a_data_set(federec, refused, ratings, place):
    assert federec("device", "init", "--data", ratings, "--users", "u7, u3").code == 0
    assert re.search("users +u7, u3", federec("device", "status").out)
    assert re.search("12 users", federec("device", "init", "--data", ratings, "--folder", place / "all").out)
    for users in ("u12", "0-3", "3-", ""):
        said = refused("device", "init", "--data", ratings, "--users", users, "--folder", place / "other")
        assert ("did you mean 'u2'?" if users == "u12" else "its users are like u0, u1") in said
    assert "a user is given twice" in refused("device", "init", "--data", ratings, "--users", "u1,u1", "--folder", "x")
    assert len(keys(place)) == 2  # none for what was refused


def test_users_that_are_numbers_are_named_by_their_ids(federec, make_ratings, tmp_path):
    data = make_ratings(tmp_path / "numbers.csv", users=6, row="1{0},i{1},{2}")
    for users, hosted in (("9-12,15", "10, 11, 12, 15"), ("13", "13")):
        folder = tmp_path / users
        assert federec("device", "init", "--data", data, "--users", users, "--folder", folder).code == 0
        assert json.loads(federec("device", "status", "--folder", folder, "--json").out)["users"] == hosted


def test_what_init_refuses(federec, refused, place, catalogue, ratings, phone):
    assert "is a device folder already; choose another path" in refused("device", "init", "--catalogue", catalogue)
    other = ("--folder", place / "other")
    assert "either --catalogue FILE or" in refused("device", "init", *other)
    assert "either --catalogue FILE or" in refused(
        "device", "init", *other, "--catalogue", catalogue, "--data", ratings
    )
    assert "--users with --data" in refused("device", "init", *other, "--catalogue", catalogue, "--users", "0-3")
    assert "goes with --data" in refused("device", "init", *other, "--catalogue", catalogue, "--k-core", 2)
    assert "--user goes with --catalogue" in refused("device", "init", *other, "--data", ratings, "--user", "me")
    locks = ("--passphrase", "--keyring")
    assert "choose one of" in refused("device", "init", *other, "--catalogue", catalogue, *locks)
    assert "no data set and no file is called 'nowhere'" in refused("device", "init", *other, "--data", "nowhere")
    for text in (
        "",
        "[]",
        '{"items": []}',
        '{"items": [1, 2]}',
        '{"items": ["a", "a"]}',
        '{"items": ["a"], "titles": []}',
    ):
        catalogue.write_text(text)
        assert "is not a catalogue" in refused("device", "init", *other, "--catalogue", catalogue)
    assert not (place / "other").exists()
    assert len(keys(place)) == 1


def test_keys_of_ones_own(federec, refused, place, catalogue):
    own = place / "my.key"
    assert federec("device", "init", "--catalogue", catalogue, "--key", own).code == 0
    assert federec("device", "init", "--catalogue", catalogue, "--key", own, "--folder", place / "two").code == 0
    assert federec("device", "status").code == 0
    own.rename(place / "moved.key")
    assert f"its key is not where it was ({own}); name the file with --key" in refused("device", "status")
    assert federec("device", "status", "--key", place / "moved.key").code == 0
    said = federec("device", "forget", "--everything", "--yes").out
    assert said.endswith("device: erased\n")
    assert (place / "moved.key").exists()  # it opens another folder too


def test_a_passphrase(federec, refused, monkeypatch, catalogue):
    monkeypatch.setenv("FEDEREC_PASSPHRASE", "short")
    assert "at least 8 characters" in refused("device", "init", "--catalogue", catalogue, "--passphrase")
    monkeypatch.setenv("FEDEREC_PASSPHRASE", "correct horse")
    assert federec("device", "init", "--catalogue", catalogue, "--passphrase").out.endswith(
        "locked with a passphrase\n"
    )
    assert federec("device", "add", "m1").code == 0
    monkeypatch.setenv("FEDEREC_PASSPHRASE", "battery staple")
    assert "this passphrase does not open it" in refused("device", "add", "m1")


def test_a_damaged_folder(federec, refused, place, phone):
    file = place / "device" / "device.db"
    file.write_bytes(file.read_bytes()[:5000])
    for words in (("status",), ("add", "m1"), ("recommend",), ("forget", "m1")):
        said = refused("device", *words)
        assert said.startswith(f"{file}: is damaged; bring back a copy of the folder, or give it up"), said
    assert federec("device", "forget", "--everything", "--yes").code == 0
    assert not (place / "device").exists()


@pytest.mark.parametrize(("answer", "code"), [("", 1), ("n\n", 1), ("y\n", 0)])
def test_nothing_is_erased_without_a_word(federec, place, phone, monkeypatch, answer, code):
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    assert federec("device", "forget", "--everything").code == code
    assert (place / "device").exists() == bool(code)


def test_forget_needs_to_know_what(refused, phone):
    assert "either an ITEM or --everything" in refused("device", "forget")
    assert "either an ITEM or --everything" in refused("device", "forget", "m1", "--everything")


def test_recommendations(federec, refused, place, ratings):
    import torch

    from federec.federation.state import State
    from federec.network.device_folder import DeviceFolder
    from federec.network.keys import Key
    from federec.network.parameters import Payload
    from federec.runs.config import RunConfig

    federec("device", "init", "--data", ratings, "--users", "u0,u1")
    store = DeviceFolder.open(place / "device", Key.file(keys(place)[0]))
    config = RunConfig.checked(method="pfedrec", data=str(ratings), settings={"dim": 4})
    start = State.start(config.build(), len(store.catalogue), 2, 0)
    seen = Payload(torch.arange(len(store.catalogue)), {"items": start.shared["items"]})
    store.commit("films-3", 4, store.begin("films-3", 4, start), seen, config)
    store.close()
    said = federec("device", "recommend", "--user", "u1", "-k", 3).out
    assert len(re.findall(r"^ *\d+ +i\d+ ", said, re.MULTILINE)) == 3, said
    assert "k=0: give a whole number of at least 1" in refused("device", "recommend", "--user", "u1", "-k", 0)
    assert re.search("learned +pfedrec, round 4 of run 'films-3', 20", federec("device", "status").out)


def test_help(federec):
    for words in ((), ("init",), ("add",), ("status",), ("recommend",), ("forget",)):
        assert "Usage" in federec("device", *words, "--help").out
    said = " ".join(federec("device", "forget", "--help").out.split())
    assert "cannot be taken out of it again" in said
    assert "all private parameters of the user" in said


def test_the_policy_is_shown_and_changed_in_words(federec, refused, phone):
    said = federec("device", "policy").out
    assert "It runs pfedrec, which is installed here, in one run" in said
    assert "only as part of a sum over at least 10 certified devices" in said
    assert "at least 4 certified devices" in federec("device", "policy", "--cohort", 4).out
    said = federec("device", "policy", "--method", "fedmf", "--show-server-what-i-like", "--runs", 3).out
    assert "It runs fedmf" in said and "in 3 runs" in said
    assert "may read this device's own updates" in said
    assert "at least 10 certified devices" in federec("device", "policy", "--reset").out
    assert "unknown stage 'clipp'" in refused("device", "policy", "--stage", "clipp:norm=1")
    assert "at least 10 certified devices" in federec("device", "policy").out
    noisy = ("--stage", "clip:norm=1", "--stage", "dense", "--stage", "gaussian:scale=9")
    assert "epsilon 2.5" in federec("device", "policy", "--epsilon", 2.5, *noisy).out


def test_a_device_is_admitted_once_for_each_key(federec, refused, place, phone):
    from federec.network.certificates import Authority

    root = Authority.create(place / "root")
    request = federec("device", "request").out
    assert request.startswith("-----BEGIN CERTIFICATE REQUEST-----") and federec("device", "request").out
    (place / "me.crt").write_bytes(root.admit(request.encode()))
    assert "admitted" in federec("device", "admit", place / "me.crt", "--root", place / "root" / "ca.crt").out
    assert federec("device", "request", "--new-key").code == 0
    said = refused("device", "admit", place / "me.crt", "--root", place / "root" / "ca.crt")
    assert "this certificate belongs to another device" in said
    (place / "bad.crt").write_text("no certificate")
    assert "certificate" in refused("device", "admit", place / "bad.crt", "--root", place / "root" / "ca.crt")


def test_init_says_how_the_data_was_read(federec, make_ratings, tmp_path):
    data = make_ratings(tmp_path / "timeless.csv", header="user,item", row="u{},i{}")
    data.write_text(data.read_text() + data.read_text().splitlines()[-1] + "\n")
    said = federec("device", "init", "--data", data)
    assert said.err.splitlines() == [
        "timeless.csv: merged 1 repeated (user, item) rows; --repeats keep keeps them",
        "timeless.csv: no time column, so held-out items are drawn at random",
    ]
    kept = federec("device", "init", "--data", data, "--repeats", "keep", "--folder", tmp_path / "other")
    assert kept.err.startswith("timeless.csv: kept 1 repeated (user, item) rows\n")
