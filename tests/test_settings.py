"""What users make in Python - methods, plug-ins, stages, runs - refuses what is wrong in one line."""

import polars
import pytest

import federec as fr
from federec.errors import EXTRAS, needs

FRAME = polars.DataFrame({"user": [1, 1, 1, 2, 2, 2], "item": [1, 2, 3, 1, 2, 3], "rating": [1, 2, 3, 4, 5, 5]})


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda data: fr.FedMF(dim=-3), "setting dim=-3 of 'fedmf': input should be greater than 0"),
        (lambda data: fr.FedMF(dim="wide"), "setting dim='wide' of 'fedmf': input should be a valid integer"),
        (lambda data: fr.FedMF(dmi=3), "'fedmf' has no setting 'dmi' - did you mean 'dim'?"),
        (lambda data: fr.Popularity(dim=3), "'popularity' has no setting 'dim'; it has none"),
        (lambda data: fr.SAM(rho=1), "plug-in 'sam' has no setting 'rho'"),
        (lambda data: fr.SAM(rho_shared=-1), "setting rho_shared=-1 of plug-in 'sam'"),
        (lambda data: (fr.FedMF() | fr.SAM()) | fr.SAM(), "plug-in 'sam' is given twice"),
        (lambda data: fr.Popularity() | fr.SAM(), "plug-in 'sam' does not fit 'popularity'"),
        (lambda data: fr.Clip(norm=0), "setting norm=0 of stage 'clip': input should be greater than 0"),
        (lambda data: fr.Clip(nrom=1), "stage 'clip' has no setting 'nrom' - did you mean 'norm'?"),
        (lambda data: setattr(fr.FedMF(), "dim", 5), "the settings of 'fedmf' are fixed; make a new one with dim=5"),
        (lambda data: fr.train(5, data), "5 is no method"),
        (lambda data: fr.train("pfedrc", data), "unknown method 'pfedrc' - did you mean 'pfedrec'?"),
        (
            lambda data: fr.train(fr.FedMF | fr.SAM, data),
            "make objects of the classes first",
        ),
        (lambda data: fr.train("fedmf", data, rounds=0), "rounds=0: input should be greater than 0"),
        (lambda data: fr.train("fedmf", data, seed="x"), "seed='x': input should be a valid integer"),
        (lambda data: fr.train("fedmf", data, protocol="clear"), "unknown protocol 'clear' - did you mean 'clean'?"),
        (lambda data: fr.train("fedmf", data, participation=2), "participation=2: input should be less than or equal"),
        (lambda data: fr.train("fedmf", data, device="gpu"), "unknown device 'gpu'"),
        (lambda data: fr.train("fedmf", data, plugins=["sma"]), "unknown plug-in 'sma' - did you mean 'sam'?"),
        (lambda data: fr.FedMF(32), "'fedmf', 32: settings are given by name, such as FedMF(batch=...)"),
        (lambda data: fr.SAM(0.1), "plug-in 'sam', 0.1: settings are given by name, such as SAM(rho_shared=...)"),
        (lambda data: fr.Popularity(1), "'popularity', 1: it has no settings"),
        (lambda data: fr.FedMF() | "sam", "'sam' is no plug-in; put objects on a method, as in fr.FedMF() | fr.SAM()"),
        (lambda data: fr.FedMF() | 3, "3 is no plug-in"),
        (lambda data: fr.FedMF() | fr.Clip(norm=1.0), "Clip(norm=1.0) is no plug-in"),
        (lambda data: fr.FedMF() | fr.Clip, "is no plug-in"),
        (lambda data: fr.train("fedmf", data, plugins=3), "plugins=3: give plug-ins"),
        (lambda data: fr.train("fedmf", data, plugins=fr.FedNCF()), "is no plug-in"),
        (lambda data: fr.train("fedmf", data, plugins=[fr.Clip()]), "Clip(norm=1.0) is no plug-in"),
        (lambda data: fr.train("fedmf", data, channel=[3]), "3 is no stage; give stages, such as [fr.Clip(norm=1.0)]"),
        (lambda data: fr.train("fedmf", data, channel=3), "channel=3: give stages"),
        (lambda data: fr.train("fedmf", data, channel=[fr.SAM]), "is no stage"),
        (lambda data: fr.train("fedmf", data, channel=fr.SAM()), "is no stage"),
        (lambda data: fr.train("fedmf", data, channel="clip:norm"), "stage 'clip:norm': write it as NAME"),
        (
            lambda data: fr.train("fedmf", data, dim=8),
            "'dim' is a setting of the method; give it there: fr.train(fr.FedMF(dim=8), ...)",
        ),
        (lambda data: fr.train("fedmf", data, round=8), "fr.train has no argument 'round' - did you mean 'rounds'?"),
        (lambda data: fr.train("fedmf", data, out=3), "3 is no path; give one as text"),
        (lambda data: fr.train("fedmf", data, on_round=3), "on_round=3: give a function"),
        (lambda data: fr.Run.load(3), "3 is no path"),
        (lambda data: fr.resume(3), "3 is no path"),
        (lambda data: fr.resume("runs/a", on_round=3), "on_round=3: give a function"),
        (lambda data: fr.load(FRAME, columns=["a", "b"]), "columns=['a', 'b']: say which column has which role"),
        (lambda data: fr.load(FRAME, held_out=[FRAME]), "held_out: give a mapping"),
        (lambda data: fr.load(FRAME, min_rating="x"), "min_rating='x': give a number"),
        (lambda data: fr.load(FRAME, min_interactions="x"), "min_interactions='x': give a whole number of at least 0"),
        (lambda data: fr.load(FRAME, k_core=1.5), "k_core=1.5: give a whole number of at least 0"),
        (lambda data: fr.reproduce(3), "unknown table '3'"),
        (lambda data: fr.reproduce("fedrap", jobs=0), "jobs=0: give a whole number of at least 1"),
        (lambda data: fr.reproduce("fedrap", seeds="x"), "seeds='x': give a whole number of at least 1"),
        (lambda data: fr.reproduce("fedrap", seeds=0), "seeds=0: give a whole number of at least 1"),
        (lambda data: fr.reproduce("fedrap", data=data), ": name data sets, such as ['ml-100k']"),
        (lambda data: fr.reproduce("fedrap", data=[data]), ": name data sets"),
        (lambda data: fr.reproduce("fedrap", only=3), "only=3: give words of the rows' names"),
        (lambda data: fr.reproduce("fedrap", out=3), "3 is no path"),
        (lambda data: fr.train("fedmf", data, channel=["clop"]), "unknown stage 'clop' - did you mean 'clip'?"),
    ],
)
def test_a_mistake_is_one_line(random_split, call, words):
    with pytest.raises(fr.UserError) as refused:
        call(random_split(users=4, items=12, least=4, most=5).data)
    text = str(refused.value)
    assert words in text and "\n" not in text and "pydantic" not in text
    assert refused.value._render_traceback_() == [f"UserError: {text}"]


def test_a_missing_package_is_named_with_its_remedy(monkeypatch):
    monkeypatch.setitem(EXTRAS, "nowhere", "results")
    with pytest.raises(
        fr.UserError, match=r"needs the package nowhere; install it with: pip install 'federec\[results\]'"
    ):
        needs("nowhere.inside")
    with pytest.raises(ModuleNotFoundError):  # what no extra installs is a mistake of ours
        needs("never_heard_of")
