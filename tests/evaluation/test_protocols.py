import pytest

from federec.errors import UserError
from federec.evaluation.protocols import PROTOCOLS, protocol


def test_only_paper_closes_the_held_out_items():
    assert {name: p.close_held_out for name, p in PROTOCOLS.items()} == {"clean": False, "paper": True}
    assert {name: p.select for name, p in PROTOCOLS.items()} == {"clean": "full.ndcg@10", "paper": "sampled.hr@10"}
    assert protocol("paper").name == "paper"


def test_an_unknown_protocol_is_refused_with_a_hint():
    with pytest.raises(UserError, match="unknown protocol 'papr' - did you mean 'paper'"):
        protocol("papr")
