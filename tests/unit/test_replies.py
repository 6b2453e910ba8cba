"""What is kept of a reply holds no secret, wherever the reply is cut."""

import json

import pytest

from gateway.calls.egress import OutboundReply
from gateway.calls.http_tool import TEXT_LIMIT
from gateway.calls.replies import outcome_of
from gateway.credentials import Scrubber, Secret

SECRET = "canary-5d1f0e7a"


@pytest.mark.parametrize("charset", ["utf-8", "utf-16", "utf-16-le", "utf-16-be", "iso-8859-1"])
@pytest.mark.parametrize("inside", range(1, len(SECRET)))
@pytest.mark.parametrize("status", [200, 400])
def test_a_secret_across_the_cut_leaves_nothing_behind(charset: str, inside: int, status: int) -> None:
    text = "x" * (TEXT_LIMIT - 1 - inside) + SECRET + "y" * 100
    reply = OutboundReply(status, {"content-type": f"text/plain; charset={charset}"}, text.encode(charset))
    kept = json.dumps(outcome_of("read", reply, Scrubber([Secret(SECRET)])).result)
    assert SECRET[:3] not in kept
    assert "x" * 100 in kept
