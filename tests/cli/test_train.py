import json
import os
import shutil

import pytest
import yaml

from federec.methods.presets import preset
from federec.methods.registry import METHODS

SMALL = ("--set", "dim=4", "--set", "item_lr_factor=1", "--rounds", "2")


def timeless(result):
    return {key: value for key, value in result.items() if key not in ("seconds", "peak_rss_mb")}


def result_of(path):
    return timeless(json.loads((path / "result.json").read_text(encoding="utf-8")))


def model_of(path):
    return {file.name: file.read_bytes() for file in (path / "model").iterdir()}


def test_a_run_from_start_to_recommendation(federec, tmp_path, ratings):
    out = tmp_path / "run"
    said = federec("train", "pfedrec", "--data", ratings, "--protocol", "paper", "--seed", 5, "--out", out, *SMALL)
    assert said.code == 0
    assert "pfedrec on ratings.csv, paper" in said.out
    assert f"run    {out}" in said.out
    assert said.err.splitlines()[-1].startswith("round 2/2  loss ")
    result = result_of(out)
    assert (result["method"], result["protocol"], result["seed"], result["rounds"]) == ("pfedrec", "paper", 5, 2)
    assert yaml.safe_load((out / "config.yaml").read_text())["settings"]["dim"] == 4
    said = federec("recommend", out, "--user", "u3", "-k", 4)
    assert said.code == 0
    assert len([line for line in said.out.splitlines() if " i" in line and "item" not in line]) == 4


def test_a_configuration_repeats_the_run(federec, tmp_path, ratings, monkeypatch):
    monkeypatch.chdir(ratings.parent)
    options = ("--data", ratings.name, "--seed", 9, "--participation", 0.5, "--protocol", "paper", "--with", "dualper")
    assert federec("train", "fedmf", *options, "--set", "dim=4", "--rounds", 2, "--out", "first").code == 0
    monkeypatch.chdir("/")
    first, second = tmp_path / "first", tmp_path / "second"
    assert federec("train", "--config", first / "config.yaml", "--out", second, "-q").code == 0
    assert result_of(second) == result_of(first)
    assert model_of(second) == model_of(first)
    assert (first / "config.yaml").read_bytes() == (second / "config.yaml").read_bytes()
    assert federec("recommend", first, "--user", "u1").code == 0


def test_options_change_a_configuration(federec, tmp_path, ratings, make_ratings):
    federec("train", "pfedrec", "--data", ratings, "--columns", "user=user,item=item", *SMALL, "--out", tmp_path / "a")
    changes = ("--seed", 4, "--set", "lr=0.2", "--data", make_ratings(tmp_path / "other.csv", seed=1))
    federec("train", "--config", tmp_path / "a" / "config.yaml", *changes, "--out", tmp_path / "b")
    federec("train", "ials", "--config", tmp_path / "a" / "config.yaml", "--rounds", 1, "--out", tmp_path / "c")
    b, c = result_of(tmp_path / "b"), result_of(tmp_path / "c")
    assert (b["seed"], b["config"]["settings"]["lr"], b["config"]["settings"]["dim"]) == (4, 0.2, 4)
    assert (b["data"]["name"], b["config"]["columns"]) == ("other.csv", {})
    assert (c["method"], c["data"]["name"], c["rounds"]) == ("ials", "ratings.csv", 1)


def test_a_preset_is_the_method_of_the_configuration_s_and_below_what_is_set(federec, tmp_path, ratings):
    federec("train", "fedrap", "--data", ratings, "--rounds", 1, "--out", tmp_path / "a")
    change = ("--preset", "ml-100k-clean", "--set", "lr=0.5")
    assert federec("train", "--config", tmp_path / "a" / "config.yaml", *change, "--out", tmp_path / "b").code == 0
    settings, found = result_of(tmp_path / "b")["config"]["settings"], preset("fedrap", "ml-100k-clean")
    assert (settings["own_lr_factor"], settings["lr"]) == (found["own_lr_factor"], 0.5)


def test_a_preset_may_say_how_many_devices_a_round_has(federec, tmp_path, ratings, monkeypatch):
    monkeypatch.setattr(
        "federec.methods.presets._read", lambda name: {"fedmf": {"few": {"participation": 0.5, "lr": 1}}}
    )
    given = ("train", "fedmf", "--data", ratings, "--rounds", 1, "--preset", "few")
    federec(*given, "--out", tmp_path / "a")
    federec(*given, "--participation", 0.25, "--out", tmp_path / "b")
    runs = [result_of(tmp_path / name)["config"] for name in "ab"]
    assert [run["participation"] for run in runs] == [0.5, 0.25] and runs[0]["settings"]["lr"] == 1


@pytest.mark.thorough
@pytest.mark.parametrize("name", METHODS)
def test_every_method_on_five_users_and_six_items(federec, tmp_path, make_ratings, name):
    data = make_ratings(tmp_path / "tiny.csv", users=5, items=6)
    assert federec("train", name, "--data", data, "--rounds", 2, "--out", tmp_path / "run", "--quiet").code == 0
    assert federec("recommend", tmp_path / "run", "--user", "u0").code == 0


def test_other_columns_another_script_and_no_timestamps(federec, tmp_path, make_ratings):
    data = make_ratings(tmp_path / "данные.tsv", header="片\t誰", row="映画{1}\tユーザー[b]{0}")
    said = federec(
        "train", "pfedrec", "--data", data, "--columns", "user=誰,item=片", *SMALL, "--out", tmp_path / "ラン"
    )
    assert said.code == 0
    said = federec("recommend", tmp_path / "ラン", "--user", "ユーザー[b]3", "-k", 2)
    assert said.code == 0
    assert said.out.count("映画") == 2


def test_names_are_shown_as_they_are(federec, tmp_path, make_ratings):
    data = make_ratings(tmp_path / "<b>&[i].csv", row="u{},[/red]{} :smile:,{}")
    said = federec("train", "popularity", "--data", data, "--out", tmp_path / "run")
    assert "<b>&[i].csv" in said.out
    assert "[/red]" in federec("recommend", tmp_path / "run", "--user", "u1").out
    assert ":smile:" in federec("recommend", tmp_path / "run", "--user", "u1").out
    html = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "&lt;b&gt;&amp;[i].csv" in html
    assert "<b>&" not in html


def test_a_file_name_that_is_not_unicode(federec, tmp_path, ratings):
    odd = tmp_path / os.fsdecode(b"\xff.csv")
    ratings.rename(odd)
    assert federec("train", "popularity", "--data", odd, "--out", tmp_path / "run").code == 0
    assert json.loads((tmp_path / "run" / "result.json").read_text())["data"]["name"] == odd.name
    assert federec("recommend", tmp_path / "run", "--user", "u1").code == 0


def test_quiet_says_nothing_but_the_end(federec, tmp_path, ratings):
    said = federec("train", "pfedrec", "--data", ratings, *SMALL, "--out", tmp_path / "run", "--quiet")
    assert said.err == ""
    assert "test, against all items" in said.out


def test_without_a_method_the_one_that_ranks_best(federec, refused, tmp_path, ratings, make_ratings):
    said = federec("train", "--data", ratings, "--out", tmp_path / "timed")
    assert said.err.startswith("method fedease: closed form, one upload; ")
    assert said.err.splitlines()[0].endswith("PFedRec: federec train pfedrec")
    assert result_of(tmp_path / "timed")["rounds"] == 16
    timeless_file = make_ratings(tmp_path / "timeless.csv", header="user,item", row="u{},i{}")
    said = federec("train", "--data", timeless_file, "--out", tmp_path / "timeless", "-q").err
    assert said.count("\n") == 2 and said.endswith("no time column, so held-out items are drawn at random\n")
    assert result_of(tmp_path / "timeless")["config"]["settings"]["recency"] == [0.0]
    again = federec("train", "--config", tmp_path / "timed" / "config.yaml", "--out", tmp_path / "again", "-q")
    assert (again.code, result_of(tmp_path / "again")) == (0, result_of(tmp_path / "timed"))
    for option in (("--set", "dim=3"), ("--with", "sam"), ("--preset", "x")):
        assert "belong to a method; name it" in refused("train", "--data", ratings, *option)


def test_rounds_that_a_method_does_not_need_are_mentioned(federec, tmp_path, ratings):
    said = federec("train", "fedease", "--data", ratings, "--rounds", 50, "--out", tmp_path / "run")
    assert said.err.startswith("rounds 50: 'fedease' has done all it can after 6\n")
    assert "has done all" not in federec("train", "fedease", "--data", ratings, "--out", tmp_path / "other").err
    config = tmp_path / "mine.yaml"
    config.write_text(f"method: fedease\ndata: {ratings}\nrounds: 50\n")
    said = federec("train", "--config", config, "--out", tmp_path / "again", "-q")
    assert said.err == "rounds 50: 'fedease' has done all it can after 6\n"


def test_json_is_all_of_the_output(federec, tmp_path, ratings):
    said = federec("train", "popularity", "--data", ratings, "--out", tmp_path / "run", "--json")
    printed = json.loads(said.out)
    assert said.err.startswith("round 1/1 ")
    assert (printed.pop("run"), printed.pop("report")) == (str(tmp_path / "run"), str(tmp_path / "run/report.html"))
    assert timeless(printed) == result_of(tmp_path / "run")


def test_without_out_a_new_folder_each_time(federec, tmp_path, ratings, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert federec("train", "popularity", "--data", ratings, "-q").code == 0
    runs = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert runs == ["popularity-ratings-clean-s0", "popularity-ratings-clean-s0-2"]


def test_a_long_ranking_is_announced_with_the_way_out(federec, tmp_path, ratings, monkeypatch):
    monkeypatch.setattr("federec.cli.announce._LONG_RANKING", 12 * 30 - 1)
    said = federec("train", "popularity", "--data", ratings, "--out", tmp_path / "a")
    assert "ranking 30 items for 12 users takes long; --evaluate-users 10000 does it for some" in said.err
    said = federec("train", "popularity", "--data", ratings, "--out", tmp_path / "b", "--evaluate-users", 5)
    assert "takes long" not in said.err


def test_repeated_rows_are_mentioned(federec, tmp_path, ratings):
    ratings.write_text(ratings.read_text() * 2)
    ratings.write_text(ratings.read_text().replace("\nuser,item,timestamp", ""))
    assert (
        "repeated (user, item) rows" in federec("train", "popularity", "--data", ratings, "--out", tmp_path / "r").err
    )


BAD = {
    "method": (("pfedrek",), "unknown method 'pfedrek' - did you mean 'pfedrec'?"),
    "set": (("--data", "ml100k"), "'ml100k' - did you mean 'ml-100k'?"),
    "file": (("--data", "./gone.csv"), "gone.csv: no such file; check the path"),
    "setting": (("--set", "dmi=3"), "'pfedrec' has no setting 'dmi' - did you mean 'dim'?"),
    "plug-in": (("--with", "dual"), "unknown plug-in 'dual' - did you mean 'dualper'?"),
    "plug-in twice": (("--with", "dualper", "--with", "dualper"), "given twice"),
    "protocol": (("--protocol", "papr"), "unknown protocol 'papr' - did you mean 'paper'?"),
    "device": (("--device", "gpu"), "unknown device 'gpu'"),
    "no such GPU": (("--device", "cuda:99"), "no GPU 'cuda:99' is usable here"),
    "rounds": (("--rounds", "0"), "rounds=0"),
    "seed": (("--seed", "-1"), "seed=-1"),
    "participation 0": (("--participation", "0"), "participation=0"),
    "participation 2": (("--participation", "2"), "participation=2"),
    "participation nan": (("--participation", "nan"), "participation=nan"),
    "dim": (("--set", "dim=0"), "dim=0"),
    "dim far too large": (("--set", f"dim={10**30}", "-q"), "not enough memory"),
    "lr": (("--set", "lr=abc"), "lr='abc'"),
    "no value": (("--set", "lr"), "--set lr: write it as key=value"),
    "no list": (("--set", "hidden=[64"), "--set hidden=[64: the value is not a number, a word or a list"),
    "no date": (("--set", "lr=2021-99-99"), "--set lr=2021-99-99"),
    "columns": (("--columns", "user"), "column"),
    "engine": (("--engine", "fusd"), "engine='fusd'"),
    "repeats": (("--repeats", "drop"), "repeats='drop'"),
    "patience": (("--patience", "0"), "patience=0"),
    "min interactions": (("--min-interactions", "1000"), "lower --min-interactions"),
    "k core": (("--k-core", "1000"), "lower --k-core"),
    "config": (("--config", "gone.yaml"), "gone.yaml: cannot be read (No such file or directory)"),
    "resume what is no run": (("--resume", "."), "is not a run folder"),
    "resume nothing": (("--resume", "gone"), "gone: is not a run folder"),
}


def test_what_takes_too_much_is_announced_and_then_refused(federec, ratings, tmp_path):
    said = federec(
        "train", "pfedrec", "--data", ratings, "--set", "dim=1000000000000000", "-q", "--out", tmp_path / "r"
    )
    *announced, refused = said.err.splitlines()
    assert said.code == 2 and refused.startswith("error: not enough memory")
    assert [line.partition(":")[0] for line in announced] == ["traffic", "memory"]
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("case", BAD)
def test_bad_options_are_refused_and_nothing_is_written(refused, tmp_path, ratings, monkeypatch, case):
    monkeypatch.chdir(tmp_path)
    options, says = BAD[case]
    if "--resume" not in options:
        options = ("--out", "new/run", *options)
        options = options if {"--data", "--config"} & set(options) else ("--data", ratings, *options)
        options = options if options[-1] == "pfedrek" or "--config" in options else ("pfedrec", *options)
    assert says in refused("train", *options)
    assert [path.name for path in tmp_path.iterdir()] == [ratings.name]


BAD_FILES = {
    "empty": ("", "empty"),
    "only a header": ("user,item\n", ""),
    "missing column": ("user,thing\na,b\n", "item"),
    "blank id": ("user,item\na,1\n,2\n", "line 3, column 'user'"),
    "nan id": ("user,item\na,1\nb,NaN\n", "line 3, column 'item'"),
    "bad time": ("user,item,timestamp\na,1,7\na,2,soon\n", "line 3, column 'timestamp'"),
    "wrong separator": ("user|item|timestamp\na|1|7\n", ""),
    "short histories": ("user,item,time\na,1,1\na,2,2\nb,1,3\n", "3 distinct items"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files_are_refused_and_nothing_is_written(refused, tmp_path, case):
    text, says = BAD_FILES[case]
    data = tmp_path / "data.csv"
    data.write_text(text)
    said = refused("train", "pfedrec", "--data", data, "--out", tmp_path / "run")
    assert says in said
    assert "data.csv" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "option", [("--seed", 1), ("ials",), ("--out", "x"), ("--config", "x"), ("--set", "dim=3"), ("--preset", "x")]
)
def test_resume_takes_no_other_options(refused, tmp_path, option):
    assert "leave out the other options" in refused("train", "--resume", tmp_path, *option)


def test_a_place_that_is_taken(refused, federec, tmp_path, ratings):
    options = ("train", "popularity", "--data", ratings, "--out")
    federec(*options, tmp_path / "run")
    assert "holds a finished run already; choose another folder" in refused(*options, tmp_path / "run")
    assert "exists and is not a run folder" in refused(*options, ratings)
    assert "ratings.csv/run: cannot be written (Not a directory)" in refused(*options, ratings / "run")
    assert "File name too long" in refused(*options, tmp_path / ("x" * 300))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_place_that_may_not_be_written(refused, federec, tmp_path, ratings):
    (tmp_path / "closed").mkdir(mode=0o500)
    options = ("train", "popularity", "--data", ratings, "--out")
    assert "run: cannot be written (Permission denied)" in refused(*options, tmp_path / "closed" / "run")
    federec(*options, tmp_path / "run")
    (tmp_path / "run").chmod(0)
    assert "Permission denied" in refused("recommend", tmp_path / "run", "--user", "u1")
    assert "Permission denied" in refused("compare", tmp_path / "run")
    (tmp_path / "run").chmod(0o700)


def test_data_that_changed(refused, federec, tmp_path, ratings):
    federec("train", "popularity", "--data", ratings, "--out", tmp_path / "run")
    ratings.write_text(ratings.read_text() + "u1,i999,99\n")
    assert "has changed since" in refused("recommend", tmp_path / "run", "--user", "u1")
    shutil.move(ratings, tmp_path / "elsewhere.csv")
    assert "ratings.csv: no such file" in refused("recommend", tmp_path / "run", "--user", "u1")


def test_a_broken_configuration_is_named(refused, tmp_path):
    (tmp_path / "c.yaml").write_text("method: pfedrec\nrounds: [")
    said = refused("train", "--config", tmp_path / "c.yaml", "--out", tmp_path / "run")
    assert "c.yaml, line 2, column 10: is not valid YAML" in said
    assert not (tmp_path / "run").exists()


def test_a_quiet_run_says_how_its_data_was_read(federec, tmp_path, make_ratings):
    data = make_ratings(tmp_path / "timeless.csv", header="user,item", row="u{},i{}")
    said = federec("train", "popularity", "--data", data, "--out", tmp_path / "run", "-q")
    assert said.err == "timeless.csv: no time column, so held-out items are drawn at random\n"


def test_a_wrong_word_gets_a_suggestion(refused, ratings):
    assert "did you mean 'keep'?" in refused("train", "popularity", "--data", ratings, "--repeats", "kep")
    assert refused("trian").endswith("Did you mean 'train'? See: federec --help\n")


def test_without_a_file_for_test_the_option_is_named(refused, ratings, tmp_path):
    valid = tmp_path / "valid.csv"
    valid.write_text("user,item,timestamp\nu0,new,99\n")
    assert "add --test-file" in refused("train", "popularity", "--data", ratings, "--valid-file", valid)


def test_the_command_line_tracks_and_a_resumed_run_goes_on(federec, refused, ratings, tmp_path):
    pytest.importorskip("tensorboard", reason="pip install federec[tensorboard]")
    out, how = tmp_path / "run", ("--rounds", 2, "--quiet", "--set", "dim=4")
    assert federec("train", "fedmf", "--data", ratings, "--track", "tensorboard", "--out", out, *how).code == 0
    assert len(list(out.glob("events.out.tfevents.*"))) == 1
    assert "leave out the other options" in refused("train", "--resume", out, "--track", "tensorboard")
    assert "did you mean 'mlflow'" in refused("train", "fedmf", "--data", ratings, "--track", "mlfow")
