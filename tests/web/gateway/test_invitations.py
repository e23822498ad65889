"""Invitations: what the page makes of what the root makes, and what the server gets to see of it."""

import pytest
from tests.web.console import Refused
from tests.web.node import needs_node

from federec.network.certificates import member
from federec.web.gateway.invitations import invitation, link
from federec.web.gateway.tokens import decoded, encoded

JOIN = """const own = {labels: ["a"], slot: 5n, cohort: 10};
const state = await client.invited(code, {root}, own);
const signature = await certificates.sign(state.identity.key, Uint8Array.of(1, 2));
return {public: state.identity.public, signature, extractable: state.identity.key.extractable, policy: state.policy};"""


@pytest.fixture
def invited(console, authority):
    return lambda code: console(JOIN, code=code, root=authority.pem.decode())


@needs_node
def test_an_invitation_makes_a_tab_a_member_of_one_user(invited, authority):
    code, certificate = invitation(authority, 30)
    found = invited(code)
    der = decoded(code)[65:]
    known = member(der, authority.pem)
    assert (found["public"], known.users) == (known.public, 1)
    assert known.verify(b"\1\2", found["signature"])
    assert found["extractable"] is False
    assert found["policy"] == {"cohort": 10, "rounds": 1000, "runs": 1}
    assert certificate.startswith(b"-----BEGIN CERTIFICATE-----")
    assert decoded(code)[33:65] not in certificate and encoded(decoded(code)[33:65]).encode() not in certificate


@needs_node
def test_whatever_is_no_invitation_of_this_federation_is_refused(invited, authority, tmp_path):
    from federec.network.certificates import Authority

    code, _ = invitation(authority, 30)
    content = decoded(code)
    another = decoded(invitation(authority, 30)[0])
    hub = content[:65] + _of_many(authority)
    for wrong, why in (
        ("", "not an invitation"),
        ("!!", "not an invitation"),
        (encoded(b"\2" + content[1:]), "not an invitation"),
        (code[:60], "not an invitation"),
        (encoded(content[:-1]), "cut short"),
        (encoded(content[:33] + another[33:65] + content[65:]), "damaged"),  # somebody else's key
        (encoded(content[:33] + bytes(32) + content[65:]), "damaged"),
        (encoded(hub), "of several users"),
        (invitation(authority, 0)[0], "has expired"),
        (invitation(Authority.create(tmp_path / "other"), 30)[0], "for another federation"),
    ):
        with pytest.raises(Refused, match=why):
            invited(wrong)


def _of_many(authority):
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    from federec.network.certificates import Identity

    pem = authority.admit(Identity.new().request(), users=7)
    return x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)


def test_a_link_keeps_the_invitation_where_browsers_do_not_send_it():
    assert link("https://films.example/", "abc") == "https://films.example/#join=abc"
