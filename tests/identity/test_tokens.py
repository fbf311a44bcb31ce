"""Join tokens and the names in certificates: what is written is read, whatever else is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ofl_iot.errors import ConfigError, CryptoError
from ofl_iot.identity.names import BROKER, ENROLMENT, Bearer, party_id
from ofl_iot.identity.tokens import JoinToken, hash_of
from ofl_iot.ids import COORDINATOR, DECRYPTOR, DeviceId, FederationId

IDS = st.from_regex(r"[a-z0-9]{1,8}(-[a-z0-9]{1,8}){0,3}", fullmatch=True)
DEVICES = IDS.filter(lambda name: name not in (COORDINATOR, DECRYPTOR, BROKER, ENROLMENT))


@given(st.binary(min_size=20, max_size=20), st.binary(min_size=32, max_size=32), st.none() | DEVICES)
def test_a_token_is_read_as_it_was_written(secret: bytes, fingerprint: bytes, name: str | None) -> None:
    token = JoinToken(secret, fingerprint, DeviceId(name) if name else None)
    assert JoinToken.parse(f" {token.text()}\n") == token
    assert secret.hex() not in repr(token)
    assert repr(secret) not in repr(token)


@given(st.text(max_size=120))
def test_other_text_is_no_token(text: str) -> None:
    with pytest.raises(ConfigError, match="no join token"):
        JoinToken.parse(text)


@given(st.integers(0, 60))
def test_a_truncated_token_is_refused(length: int) -> None:
    with pytest.raises(ConfigError):
        JoinToken.parse(JoinToken(bytes(20), bytes(32)).text()[:length])


@given(st.binary(min_size=20, max_size=20), st.binary(min_size=20, max_size=20))
def test_the_kept_hash_tells_secrets_apart_and_does_not_hold_them(one: bytes, other: bytes) -> None:
    assert (hash_of(one) == hash_of(other)) == (one == other)
    assert one not in hash_of(one)


@given(IDS, IDS, st.just(b"") | st.binary(min_size=32, max_size=32))
def test_a_bearer_is_read_as_it_was_written(federation: str, name: str, sealing: bytes) -> None:
    bearer = Bearer(FederationId(federation), DeviceId(name), sealing)
    assert Bearer.parse(bearer.uri()) == bearer


@pytest.mark.parametrize(
    "uri",
    ["", "ofl", "ofl:a:b", "ofl:a:b:00", "ofl:A:b:", "ofl:a:b/c:", "http:a:b:", "ofl:a:b::", "ofl:a:b:" + "G" * 64],
)
def test_another_uri_names_nobody(uri: str) -> None:
    with pytest.raises(CryptoError, match="none that this federation gives"):
        Bearer.parse(uri)


def test_parties_have_their_names_and_nobody_takes_that_of_the_service() -> None:
    assert [party_id(name) for name in (COORDINATOR, DECRYPTOR, BROKER, "truck-1")]
    with pytest.raises(ConfigError, match="belongs to the enrolment service"):
        party_id(ENROLMENT)
    with pytest.raises(ConfigError, match="lower-case"):
        party_id("Truck 1")
