"""What users make in Python - methods, plug-ins, stages, runs - refuses what is wrong in one line."""

import pytest

import federec as fr
from federec.errors import needs


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
        (lambda data: fr.train("fedmf", data, channel=["clop"]), "unknown stage 'clop' - did you mean 'clip'?"),
    ],
)
def test_a_mistake_is_one_line(random_split, call, words):
    with pytest.raises(fr.UserError) as refused:
        call(random_split(users=4, items=12, least=4, most=5).data)
    text = str(refused.value)
    assert words in text and "\n" not in text and "pydantic" not in text
    assert refused.value._render_traceback_() == [f"UserError: {text}"]


def test_a_missing_package_is_named_with_its_remedy():
    with pytest.raises(
        fr.UserError, match=r"needs the package nowhere; install it with: pip install 'federec\[results\]'"
    ):
        needs("nowhere.inside", "results")
