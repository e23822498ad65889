"""What an operator is told before a gateway opens, and what the gateway tells everybody."""

import json
import ssl

import pytest

pytest.importorskip("flwr", reason="pip install federec[flower]")

from tests.network.federated import federated

from federec.errors import UserError
from federec.network.certificates import Authority
from federec.network.events import Events
from federec.runtimes.flower.admission import Admission
from federec.runtimes.flower.link import Link
from federec.web.gateway.server import Address, check_tabs, described, files_of, open_gateway

SMALL = {"dim": 4}


def made(tmp_path, data, **how):
    values = {"channel": ("secure-sum",), "settings": SMALL} | how
    return federated(tmp_path / "run", data, values.pop("method", "pfedrec"), **values)


@pytest.mark.parametrize("text", ["8080", ":8080", "host", "127.0.0.1:x", "127.0.0.1:70000"])
def test_an_address_has_a_host_and_a_port(text):
    with pytest.raises(UserError, match="write it as HOST:PORT"):
        Address.of(text, None)


def test_without_tls_only_this_machine_is_served(tmp_path):
    assert Address.of("127.0.0.1:0", None) == Address("127.0.0.1", 0)
    assert Address.of("[::1]:80", None).host == "::1"
    with pytest.raises(UserError, match="browsers only join over TLS"):
        Address.of("0.0.0.0:8443", None)
    with pytest.raises(UserError, match=r"server\.pem"):
        Address.of("0.0.0.0:8443", tmp_path)


def test_a_gateway_speaks_https_with_a_certificate(trained, tmp_path):
    import httpx

    run, page = trained("pfedrec")
    ours = made(tmp_path, run.data)
    Authority.read(ours.run / "tls").serve(ours.run / "tls", ["127.0.0.1"])
    link, root = Link(), ours.run / "tls" / "ca.crt"
    admission = Admission(link, ours.run / "nodes", root.read_bytes(), Events(ours.run / "audit.jsonl"))
    address = Address.of("127.0.0.1:0", ours.run / "tls")
    url, server = open_gateway(address, ours.run, files_of(ours.run, page), link, admission)
    try:
        assert url.startswith("https://127.0.0.1:")
        trust = ssl.create_default_context(cafile=root)
        assert httpx.get(url, verify=trust).text.startswith("<!doctype html>")
        assert httpx.get(f"{url}gateway/description", verify=trust).json()["root"] == root.read_text()
        with pytest.raises(httpx.TransportError):
            httpx.get(url.replace("https", "http"))
    finally:
        server.should_exit = server.force_exit = True


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"method": "fedncf"}, "cannot learn 'fedncf'"),
        ({"plugins": ("ldp",)}, r"cannot learn 'pfedrec\+ldp'"),
        ({"settings": {"dim": 4, "hidden": [5]}}, "cannot learn 'pfedrec' with these settings"),
        ({"channel": ()}, "channel is: in the clear"),
        ({"channel": ("clip:norm=1", "secure-sum")}, "channel is: clip, secure-sum"),
    ],
)
def test_a_federation_in_which_no_tab_would_take_part_is_refused(random_split, tmp_path, how, why):
    with pytest.raises(UserError, match=why):
        check_tabs(made(tmp_path, random_split(users=6).data, **how).config)


def test_the_description_has_nothing_secret_and_nothing_that_tabs_compute(random_split, tmp_path):
    run = made(tmp_path, random_split(users=6).data)
    told = json.loads(described(run.run, b"root"))
    assert set(told) == {"run", "config", "root"}
    assert told["config"]["channel"] == [{"stage": "secure-sum", "most": 2048.0}]


def test_the_page_must_have_the_federations_items(trained, random_split, tmp_path):
    run, page = trained("pfedrec")
    ours = made(tmp_path, run.data)
    files = files_of(ours.run, page)
    assert json.loads(files["page.json"])["gateway"] == "gateway/"
    assert {"index.html", "federation/device.js", "catalogue.json"} <= files.keys()
    other = federated(tmp_path / "other", random_split(users=6).data, channel=("secure-sum",), settings=SMALL)
    with pytest.raises(UserError, match="has other items"):
        files_of(other.run, page)
