from __future__ import annotations

import ipaddress
import socket

import pytest

from retrieval_app.server.own_addresses import choose_shown, name_listened, write_url


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "192.0.2.7", "::1", "photos.example.org"])
def test_one_address_is_told_as_it_is(host: str) -> None:
    assert (choose_shown(host), name_listened(host)) == (host, None)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_in_the_place_of_all_addresses_one_is_told_that_leads_to_this_machine(host: str) -> None:
    shown = choose_shown(host)
    assert ipaddress.ip_address(shown).version == ipaddress.ip_address(host).version
    assert not ipaddress.ip_address(shown).is_unspecified
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with listener, socket.create_connection((shown, listener.getsockname()[1]), timeout=10):
        assert name_listened(host) == socket.gethostname()


def test_a_machine_in_a_network_tells_no_address_of_its_own_alone() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(("198.51.100.1", 9))
        except OSError:
            pytest.skip("this machine is in no network")
    assert not ipaddress.ip_address(choose_shown("0.0.0.0")).is_loopback


def test_addresses_of_ipv6_stand_in_brackets_and_paths_behind() -> None:
    assert write_url("2001:db8::1", 80) == "http://[2001:db8::1]:80/"
    assert write_url("192.0.2.1", 7860, root_path="/photos") == "http://192.0.2.1:7860/photos/"
