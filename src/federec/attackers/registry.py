"""All attacks by name."""

from __future__ import annotations

from federec.attackers.base import Attack
from federec.attackers.clusterattack import ClusterAttack
from federec.attackers.fedattack import FedAttack
from federec.attackers.fedrecattack import FedRecAttack
from federec.attackers.label_flip import LabelFlip
from federec.attackers.pipattack import PipAttack
from federec.attackers.promote import Promote
from federec.attackers.random import Random
from federec.errors import UserError, did_you_mean
from federec.settings import parsed

ATTACKS: dict[str, type[Attack]] = {
    kind.name: kind for kind in (Random, LabelFlip, Promote, PipAttack, FedRecAttack, FedAttack, ClusterAttack)
}


def parse_attack(text: str) -> Attack:
    """The attack that a text describes: `promote`, `promote:fraction=0.01`."""
    name, values = parsed(text, "attack")
    if name not in ATTACKS:
        raise UserError(f"unknown attack '{name}'{did_you_mean(name, ATTACKS)}")
    return ATTACKS[name](**values)
