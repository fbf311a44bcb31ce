"""A dishonest coordinator, alone or with leaders, asks for what it must not have: leaders answer none of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from ofl_iot.crypto.lean.budget import MOST_TRIES, score_requests
from ofl_iot.crypto.lean.header import decode_header
from ofl_iot.crypto.lean.vouchers import Statement, sign
from ofl_iot.ids import COORDINATOR
from ofl_iot.protocol.codec import decode_body, encode_body
from ofl_iot.protocol.lean import LeanAnswer, LeanUpload, OpenAsk, ScoresAsk, SignedHeader, SketchAsk, VouchAsk
from ofl_iot.protocol.parts import split_body
from ofl_iot.protocol.topics import Kind, Topic
from ofl_iot.roles.events import Arrived
from ofl_iot.roles.job_kinds.rounds import Contributed
from tests.identity.certs import key
from tests.roles.circle import names
from tests.roles.lean_circle import LeanCircle, lean_updates
from tests.roles.parties import dropped

A, B, C, D = names(4)
WEIGHTS = {A: 1, B: 1, C: 1, D: 1}


@pytest.fixture
def circle() -> LeanCircle:
    return LeanCircle(names(4))


@pytest.fixture
def uploads(circle: LeanCircle) -> dict[str, LeanUpload]:
    return read(circle.uploaded(lean_updates(4)))


def read(contributions: tuple[Contributed, ...]) -> dict[str, LeanUpload]:
    return {each.leader: decode_body(LeanUpload, each.payload) for each in contributions}


def headers(uploads: dict[str, LeanUpload]) -> tuple[SignedHeader, ...]:
    return tuple(upload.signed for upload in uploads.values())


def statement(uploads: dict[str, LeanUpload], weights: dict[str, int]) -> Statement:
    return Statement.over([decode_header(each.signed.header) for each in uploads.values()], weights)


def boxes(uploads: dict[str, LeanUpload], receiver: str) -> dict[str, bytes]:
    return {sender: upload.boxes[receiver] for sender, upload in uploads.items()}


def signed_by(circle: LeanCircle, uploads: dict[str, LeanUpload], weights: dict[str, int]) -> dict[str, bytes]:
    """Everybody's true signatures on a vector."""
    answers = {name: circle.ask(name, "vouch", VouchAsk(headers(uploads), weights)) for name in weights}
    return {name: answer.data for name, answer in answers.items() if answer}


def test_what_everybody_signed_for_is_answered(circle: LeanCircle, uploads: dict[str, LeanUpload]) -> None:
    """The control: without it the other tests could pass because nothing is ever answered."""
    signatures = signed_by(circle, uploads, WEIGHTS)
    assert signatures.keys() == WEIGHTS.keys()
    for name in WEIGHTS:
        answer = circle.ask(name, "open", OpenAsk(headers(uploads), WEIGHTS, signatures, boxes(uploads, name)))
        assert answer is not None
        assert len(answer.data) == 7680


# --- rule 1 and 3: shares are answered for what all contributors signed, and for nothing else


def test_a_forged_request_to_open_gets_no_answer(circle: LeanCircle, uploads: dict[str, LeanUpload]) -> None:
    signatures = signed_by(circle, uploads, WEIGHTS)
    forgeries = {
        "no signatures": OpenAsk(headers(uploads), WEIGHTS, {}, boxes(uploads, A)),
        "one missing": OpenAsk(headers(uploads), WEIGHTS, {**signatures, D: b""}, boxes(uploads, A)),
        "one copied": OpenAsk(headers(uploads), WEIGHTS, {**signatures, D: signatures[B]}, boxes(uploads, A)),
        "other weights": OpenAsk(headers(uploads), {A: 2, B: 1, C: 1, D: 1}, signatures, boxes(uploads, A)),
        "fewer contributors": OpenAsk(headers(uploads), {A: 1, B: 1}, signatures, boxes(uploads, A)),
        "one alone": OpenAsk(headers(uploads), {B: 1}, signatures, boxes(uploads, A)),
    }
    for what, forged in forgeries.items():
        assert circle.ask(A, "open", forged) is None, what


def test_t_minus_one_colluders_cannot_show_two_honest_leaders_different_vectors(
    circle: LeanCircle, uploads: dict[str, LeanUpload]
) -> None:
    """C and D sign anything. A and B sign one vector each for their bodies; no sum opens for both of two vectors."""
    one, two = {A: 1, B: 1, C: 1, D: 1}, {A: 2, B: 1, C: 1, D: 1}
    first = circle.ask(A, "vouch", VouchAsk(headers(uploads), one))
    second = circle.ask(B, "vouch", VouchAsk(headers(uploads), two))
    assert first is not None
    assert second is not None
    for weights, held in ((one, {A: first.data}), (two, {B: second.data})):
        text = statement(uploads, weights).signed_bytes
        forged = {A: b"", B: b"", **held, C: sign(key(2), text), D: sign(key(3), text)}
        for name in (A, B):
            ask = OpenAsk(headers(uploads), weights, forged, boxes(uploads, name))
            assert circle.ask(name, "open", ask) is None


def test_a_leader_signs_one_vector_for_a_body_also_after_a_restart(
    circle: LeanCircle, uploads: dict[str, LeanUpload]
) -> None:
    assert circle.ask(A, "vouch", VouchAsk(headers(uploads), WEIGHTS)) is not None
    for weights in ({A: 2, B: 1, C: 1, D: 1}, {A: 1, B: 1, C: 1}):
        assert circle.ask(A, "vouch", VouchAsk(headers(uploads), weights)) is None
    circle.restart(A)
    assert circle.ask(A, "vouch", VouchAsk(headers(uploads), {A: 3, B: 2, C: 2, D: 2})) is None
    assert set(circle.reasons("share withheld")) == {"another vector was signed for this body, or none"}


def test_a_leader_signs_the_same_weights_for_one_set_of_bodies_only(
    circle: LeanCircle, uploads: dict[str, LeanUpload]
) -> None:
    """B works with the coordinator and uploads twice: the two sums would differ by a body that both know."""
    assert circle.ask(A, "vouch", VouchAsk(headers(uploads), WEIGHTS)) is not None
    second = read((circle.contribute(B, 2 * lean_updates(4)[B]),))
    other = {**uploads, **second}
    assert headers(other) != headers(uploads)
    assert circle.ask(A, "vouch", VouchAsk(headers(other), WEIGHTS)) is None
    assert circle.reasons("share withheld") == ["another vector was signed for this body, or none"]


@pytest.mark.parametrize("enrolled", [True, False])
def test_nothing_opens_that_this_leader_is_part_of_and_did_not_sign_for(enrolled: bool) -> None:
    """Also where nobody is enrolled and signatures are empty: a leader knows what it signed for."""
    circle = LeanCircle(names(4), enrolled=enrolled)
    uploads = read(circle.uploaded(lean_updates(4)))
    made = dict.fromkeys(WEIGHTS, b"")
    assert circle.ask(A, "open", OpenAsk(headers(uploads), WEIGHTS, made, boxes(uploads, A))) is None


def test_a_share_of_another_body_does_not_open_under_this_ones_name(
    circle: LeanCircle, uploads: dict[str, LeanUpload]
) -> None:
    """D passes A's box on as its own: it is sealed by A, beside A's header."""
    signatures = signed_by(circle, uploads, WEIGHTS)
    swapped = {**boxes(uploads, B), D: uploads[A].boxes[B]}
    answer = circle.ask(B, "open", OpenAsk(headers(uploads), WEIGHTS, signatures, swapped))
    assert answer is not None
    assert (answer.data, answer.accused) == (b"", (D,))


# --- rule 2: common ground


@pytest.mark.parametrize("what", ["bounds", "base"])
def test_leaders_on_different_ground_sign_nothing(circle: LeanCircle, what: str) -> None:
    """One gets fine bounds, the others huge ones: their values round to zero and the sum is one update."""
    updates = lean_updates(4)
    coarse = np.array([4], np.int8).tobytes()
    ground: dict[str, object] = {"bounds": coarse} if what == "bounds" else {"base": np.ones(40, np.float32)}
    contributions = [circle.contribute(A, updates[A])]
    contributions += [circle.contribute(name, updates[name], **ground) for name in (B, C, D)]  # type: ignore[arg-type]
    uploads = read(tuple(contributions))
    for name in WEIGHTS:
        assert circle.ask(name, "vouch", VouchAsk(headers(uploads), WEIGHTS)) is None
    failed = circle.reasons("key work failed")
    assert len(failed) == 4
    assert all("another" in reason for reason in failed)


def test_a_header_that_the_coordinator_altered_or_made_up_is_refused(
    circle: LeanCircle, uploads: dict[str, LeanUpload]
) -> None:
    theirs = decode_header(uploads[B].signed.header)
    altered = SignedHeader(msgspec.structs.replace(theirs, attempt=5).encode(), uploads[B].signed.signature)
    unsigned = SignedHeader(uploads[B].signed.header, b"")
    for header in (altered, unsigned):
        asked = (uploads[A].signed, header, uploads[C].signed, uploads[D].signed)
        assert circle.ask(A, "sketch", SketchAsk(asked, boxes(uploads, A))) is None
        assert circle.ask(A, "vouch", VouchAsk(asked, WEIGHTS)) is None
    without = tuple(uploads[name].signed for name in (B, C, D))
    assert circle.ask(A, "sketch", SketchAsk(without, boxes(uploads, A))) is None


def test_nothing_is_answered_for_a_round_without_an_open_contribution(
    circle: LeanCircle, uploads: dict[str, LeanUpload]
) -> None:
    request = encode_body(VouchAsk(headers(uploads), WEIGHTS))
    (part,) = split_body(request, 2, 2, "vouch.0.1")
    report = dropped(circle.give(A, Arrived(Topic(Kind.DECRYPT, "coordinator", A), part)))  # type: ignore[arg-type]
    assert report.reason == "a request to decrypt in round 2, to which this device did not contribute"
    circle.bodies[A].open_body = None
    assert circle.ask(A, "vouch", request) is None


# --- rule 4: what was signed for is signed again under the same vector alone


def test_an_update_signed_for_in_an_abandoned_round_goes_out_under_the_same_vector_or_not_at_all(
    circle: LeanCircle, uploads: dict[str, LeanUpload]
) -> None:
    """{A, B, C, D} and then {A, B, C}: the difference would be D's update."""
    assert len(signed_by(circle, uploads, WEIGHTS)) == 4
    again = read(circle.uploaded(lean_updates(4), round_no=2))
    pinned = decode_header(again[A].signed.header).pinned
    assert {each.leader: each.weight for each in pinned} == WEIGHTS
    fewer = VouchAsk(headers({n: u for n, u in again.items() if n != D}), {A: 1, B: 1, C: 1})
    heavier = VouchAsk(headers(again), {A: 2, B: 1, C: 1, D: 1})
    for ask in (fewer, heavier):
        assert circle.ask(A, "vouch", ask, round_no=2) is None
    assert circle.ask(A, "vouch", VouchAsk(headers(again), WEIGHTS), round_no=2) is not None


def test_a_key_made_anew_among_the_same_leaders_frees_no_update_that_was_signed_for(
    circle: LeanCircle, uploads: dict[str, LeanUpload]
) -> None:
    """Keys are made beside the rounds at the coordinator's word: another one must not buy a difference."""
    assert len(signed_by(circle, uploads, WEIGHTS)) == 4
    held = circle.keepers[A].material
    assert circle.make_key(term=2)
    assert circle.keepers[A].material != held
    again = read(circle.uploaded(lean_updates(4), round_no=2))
    pinned = decode_header(again[A].signed.header).pinned
    assert {each.leader: each.weight for each in pinned} == WEIGHTS
    fewer = VouchAsk(headers({n: u for n, u in again.items() if n != D}), {A: 1, B: 1, C: 1})
    assert circle.ask(A, "vouch", fewer, round_no=2) is None
    assert circle.ask(A, "vouch", VouchAsk(headers(again), WEIGHTS), round_no=2) is not None


def test_a_vector_whose_contributor_has_no_share_of_the_next_key_does_not_hold_the_others_for_ever(
    circle: LeanCircle, uploads: dict[str, LeanUpload]
) -> None:
    assert len(signed_by(circle, uploads, WEIGHTS)) == 4
    assert circle.make_key(term=3, members=(A, B, C))
    updates = {name: update for name, update in lean_updates(4).items() if name != D}
    again = read(circle.uploaded(updates, round_no=2))
    assert decode_header(again[A].signed.header).pinned == ()


def test_the_coordinator_keeps_to_the_vector_that_was_signed(circle: LeanCircle) -> None:
    updates = lean_updates(4)
    contributions = circle.uploaded(updates)
    heavy = tuple(replace(each, sample_count=30 if each.leader == A else 10) for each in contributions)
    circle.fate = lambda _from, _to, message: int(not getattr(message, "stage", "").startswith("open"))
    assert circle.lean_round(heavy) is None
    assert circle.bodies[A].pin is not None
    signed = dict(circle.bodies[A].pin)
    circle.fate = lambda *_: 1
    result = circle.lean_round(circle.uploaded(updates, round_no=2), round_no=2)
    assert result is not None
    total = sum(signed.values())
    assert result.weights == {name: pytest.approx(weight / total) for name, weight in signed.items()}
    assert signed[A] > signed[B]


# --- rule 5: weights


@pytest.mark.parametrize(
    "weights",
    [
        {A: 16, B: 1, C: 1, D: 1},
        {A: 17, B: 17, C: 17, D: 13},
        {A: 2, B: 2, C: 2, D: 2},
        {A: 0, B: 1, C: 1, D: 1},
        {A: 2, B: 1},
        {A: 1},
        {A: 59, B: 5},
    ],
)
def test_weights_that_show_one_update_are_not_signed(
    circle: LeanCircle, uploads: dict[str, LeanUpload], weights: dict[str, int]
) -> None:
    assert circle.ask(A, "vouch", VouchAsk(headers(uploads), weights)) is None


# --- rule 7: scores


def sketches(
    circle: LeanCircle, uploads: dict[str, LeanUpload], round_no: int = 1, *, of: Sequence[str] = ()
) -> dict[str, LeanAnswer]:
    """Everybody's sketch, or only of some."""
    asked = {n: SketchAsk(headers(uploads), boxes(uploads, n)) for n in of or uploads}
    answers = {name: circle.ask(name, "sketch", ask, round_no) for name, ask in asked.items()}
    return {name: answer for name, answer in answers.items() if answer}


def scores_ask(uploads: dict[str, LeanUpload], drawn: dict[str, LeanAnswer], retry: int) -> ScoresAsk:
    others = {name: answer.data for name, answer in drawn.items() if name != A}
    signatures = {name: answer.signature for name, answer in drawn.items()}
    return ScoresAsk(headers(uploads), others, (A, B, C), retry, {}, signatures)


def test_a_key_answers_so_many_numbers_and_no_more_also_after_a_restart(circle: LeanCircle) -> None:
    """A chosen sketch shows 4 coefficients of the secret for each number (sc.py): the budget keeps them below 500."""
    most = score_requests(4, 3)
    asked = 0
    for round_no in range(1, 3):
        uploads = read(circle.uploaded(lean_updates(4), round_no=round_no))
        drawn = sketches(circle, uploads, round_no)
        for retry in range(1, most + 1):
            asked += 1
            answered = circle.ask(A, "scores", scores_ask(uploads, drawn, retry), round_no)
            assert (answered is not None) == (asked <= most)
            if asked == most:
                circle.restart(A)
    assert asked == 2 * most


def test_requests_that_are_under_way_at_once_share_one_budget(
    circle: LeanCircle, uploads: dict[str, LeanUpload]
) -> None:
    """All are asked before one is answered: each alone would be within what is left."""
    drawn = sketches(circle, uploads)
    most, answers = score_requests(4, 3), 0
    for retry in range(1, most + 4):
        body = encode_body(scores_ask(uploads, drawn, retry))
        for part in split_body(body, 2, 1, f"scores.9.{retry}"):
            circle.give(A, Arrived(Topic(Kind.DECRYPT, COORDINATOR, A), part))
    circle.deliver()
    for _, topic, message in circle.sent:
        label = getattr(message, "stage", "")
        answers += topic.kind is Kind.SHARE and label.startswith("scores") and getattr(message, "part", 1) == 0
    assert answers == most
    assert len(circle.reasons("share withheld")) == 3


def test_a_seed_of_the_scores_cannot_be_searched_for(circle: LeanCircle, uploads: dict[str, LeanUpload]) -> None:
    drawn = sketches(circle, uploads)
    for retry in (0, MOST_TRIES + 1, 2**53 - 1):
        assert circle.ask(A, "scores", scores_ask(uploads, drawn, retry)) is None


def test_scores_of_another_own_sketch_are_not_answered(circle: LeanCircle, uploads: dict[str, LeanUpload]) -> None:
    drawn = sketches(circle, uploads)
    whole = scores_ask(uploads, drawn, 1)
    forged = msgspec.structs.replace(whole, sketches={**whole.sketches, A: drawn[A].data})  # in place of A's own
    assert circle.ask(A, "scores", forged) is None
    assert circle.ask(A, "scores", whole) is not None


def test_the_coordinator_puts_no_sketch_of_its_own_in_a_leaders_place(
    circle: LeanCircle, uploads: dict[str, LeanUpload]
) -> None:
    """A chosen sketch shows coefficients of the joint secret, or a chosen combination of everybody else's sketches.

    Without signatures a coordinator alone could name D and send A, B and C a ciphertext of its choice as D's.
    """
    drawn = sketches(circle, uploads)
    honest = scores_ask(uploads, drawn, 1)
    chosen = {
        "made up": {**honest.sketches, D: drawn[C].data},
        "damaged": {**honest.sketches, D: drawn[D].data[:-1] + bytes([drawn[D].data[-1] ^ 1])},
    }
    for what, sent in chosen.items():
        assert circle.ask(A, "scores", msgspec.structs.replace(honest, sketches=sent)) is None, what
    signed_by_c = {**honest.signatures, D: honest.signatures[C]}
    copied = msgspec.structs.replace(honest, sketches=chosen["made up"], signatures=signed_by_c)
    assert circle.ask(A, "scores", copied) is None
    reasons = circle.reasons("key work failed")
    assert len(reasons) == 3
    assert all(f"{D}: the signature is not its own" in reason for reason in reasons), reasons
    assert circle.ask(A, "scores", honest) is not None


def test_a_sketch_made_for_other_headers_is_not_scored(circle: LeanCircle, uploads: dict[str, LeanUpload]) -> None:
    """Its signs are others: the numbers would be of a mixture that nobody planned."""
    three = {name: upload for name, upload in uploads.items() if name != B}
    drawn = sketches(circle, uploads) | sketches(circle, three, of=(C,))
    assert circle.ask(A, "scores", scores_ask(uploads, drawn, 1)) is None


def test_leaders_decrypt_the_request_that_they_computed_themselves(
    circle: LeanCircle, uploads: dict[str, LeanUpload]
) -> None:
    """A request carries no ciphertext of scores that could be forged, and no width of noise to dictate."""
    fields = set(ScoresAsk.__struct_fields__)
    assert fields == {"headers", "sketches", "active", "retry", "boxes", "signatures"}
    drawn = sketches(circle, uploads)
    one = circle.ask(A, "scores", scores_ask(uploads, drawn, 1))
    two = circle.ask(A, "scores", scores_ask(uploads, drawn, 2))
    assert one is not None
    assert two is not None
    assert one.data != two.data


# --- a leader that lies to the gate


def test_a_leader_that_sketches_another_update_than_it_masks_is_named_and_left_out(circle: LeanCircle) -> None:
    """It masks a poisoned update and has the sketch of an innocent one scored."""
    updates = lean_updates(4)
    poisoned = updates | {D: (-20 * updates[D]).astype(np.float32)}
    contributions = circle.uploaded(poisoned)
    own = circle.bodies[D].open_body
    assert own is not None
    circle.bodies[D].open_body = replace(own, update=updates[D])
    result = circle.lean_round(contributions)
    assert result is not None
    assert D not in result.weights
    assert circle.reasons("contribution refused") == ["its sketch is not one of its body"]
    assert circle.office.decryption is not None
    assert D in circle.office.decryption.failing
    honest = np.mean([updates[name] for name in (A, B, C)], axis=0)
    assert np.abs(result.update - honest).max() < 1e-3
