"""Replies of Flower's nodes in bytes: Flower's own SuperLink, clients and grid, in this process.

The SuperLink checks the heads of objects and not their bodies, and what a reply says of its sender
is believed by Flower's grid. See `superlink.py` for what is Flower's here: all but the network.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip(
    "flwr", reason="flwr is not installed: pip install '.[flower]' runs Flower's tests"
)

import federation
import httpx
from flwr.app import Message, MessageType, RecordDict
from flwr.app.message import make_message
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.run import RunNotRunningException
from flwr.superlink.grid import InMemoryGrid
from superlink import Hostile, Parcel, SuperLink, SuperNode, superlink

from byzantium.engines.flower import RobustStrategy, Round
from byzantium.engines.flower.grid import ReplyGrid, message_to
from byzantium.engines.flower.nodes import sort_replies

HONEST = 3
PULL = "/v1/runtime/pull-messages"


@pytest.fixture
def link() -> Iterator[SuperLink]:
    with superlink() as link:
        for k in range(HONEST):
            link.join(federation.honest(k))
        yield link


def run(link: SuperLink, f: int = 1, timeout: float = 60) -> tuple[Round[int], Round[int]]:
    """One round of training and one of evaluation: what happened in each."""
    strategy = RobustStrategy("Median()", f=f)
    strategy.start(link.grid, federation.record(federation.plain()), 1, timeout)
    return strategy.rounds[0], strategy.evaluations[0]


def honest(link: SuperLink) -> set[int]:
    return {node.id for node in link.nodes if node.hostile is None}


# -- bytes that cannot be read ---------------------------------------------------------------------


def corrupt(kind: str) -> Hostile:
    return lambda parcel, node: [parcel.replace(kind, lambda body: b"\xff" * 9)]


def no_message(parcel: Parcel, node: SuperNode) -> Iterable[Parcel]:
    """A record in the place of the message."""
    tree = copy.deepcopy(parcel.tree.children[0])
    parcel.tree.CopyFrom(tree)
    parcel.head.metadata.message_id = tree.object_id
    return [parcel]


UNREADABLE: dict[str, Hostile] = {
    "metrics": corrupt("MetricRecord"),
    "records": corrupt("RecordDict"),
    "message": corrupt("Message"),
    "no message": no_message,
}
# In training only: an evaluation has no arrays.
UNREADABLE_ARRAYS: dict[str, Hostile] = {
    "arrays": corrupt("ArrayRecord"),
    "array": corrupt("Array"),
}


def test_replies_that_cannot_be_read_are_rejected_and_named(link: SuperLink) -> None:
    for k in range(HONEST, 2 * HONEST + 1):
        link.join(federation.honest(k))
    kinds = {**UNREADABLE, **UNREADABLE_ARRAYS}
    nodes = {k: link.join(federation.honest(9 + len(link.nodes)), kinds[k]).id for k in kinds}
    always = [nodes[kind] for kind in UNREADABLE]
    arrays = [nodes[kind] for kind in UNREADABLE_ARRAYS]
    train, evaluation = run(link, f=len(always) + len(arrays))
    assert set(train.rejected) == {*always, *arrays}
    assert set(evaluation.rejected) == set(always)
    assert set(train.used) == honest(link)
    assert not train.absent
    assert not evaluation.absent
    for reason in [*train.rejected.values(), *evaluation.rejected.values()]:
        assert reason.startswith("cannot be read: ")


# -- who sent it -----------------------------------------------------------------------------------


def says(change: Callable[[Any, SuperNode], None]) -> Hostile:
    """What the reply says of itself, in its bytes."""

    def hostile(parcel: Parcel, node: SuperNode) -> Iterable[Parcel]:
        def changed(body: bytes) -> bytes:
            message = ProtoMessage.FromString(body)
            change(message.metadata, node)
            return message.SerializeToString()

        return [parcel.replace("Message", changed)]

    return hostile


@pytest.mark.parametrize("claim", ["sender", "group"])
def test_what_a_reply_says_of_itself_changes_nobodys_standing(link: SuperLink, claim: str) -> None:
    victim = link.nodes[0]

    def change(metadata: Any, node: SuperNode) -> None:
        if claim == "sender":
            metadata.src_node_id = victim.id
        else:
            metadata.group_id = "7"

    far = federation.hostile(federation.LIES["far away"])
    liar = link.join(far, says(change))
    train, evaluation = run(link)
    for at in train, evaluation:
        assert set(at.used) == {*honest(link), liar.id}
        assert not at.rejected
        assert not at.absent
        assert not at.ignored
    assert max(train.distances, key=train.distances.__getitem__) == liar.id


def test_a_reply_that_claims_to_answer_another_message_does_not_hide_the_reply_to_it(
    link: SuperLink,
) -> None:
    """The other node replies when the false reply has been pulled."""
    victim = link.nodes.pop()
    false: list[str] = []

    def claim(metadata: Any, node: SuperNode) -> None:
        sent = {m.metadata.dst_node_id: m for m in link.state.message_ins_store.values()}
        metadata.reply_to_message_id = sent[victim.id].metadata.message_id

    def hostile(parcel: Parcel, node: SuperNode) -> Iterable[Parcel]:
        parcels = list(says(claim)(parcel, node))
        false.append(parcels[0].tree.object_id)
        return parcels

    def act_late(request: httpx.Request) -> None:
        if request.url.path.endswith("/runtime/confirm-message-received"):
            confirmed = ConfirmMessageReceivedRequest.FromString(request.content)
            if confirmed.message_object_id in false:
                victim.act()

    link.wire.fault = act_late
    liar = link.join(federation.honest(9), hostile)
    for at in run(link, timeout=10):
        assert set(at.used) == {*honest(link), victim.id, liar.id}


@pytest.mark.parametrize("readable", [True, False])
def test_what_nodes_push_in_the_name_of_the_superlink_is_ignored(
    link: SuperLink, caplog: pytest.LogCaptureFixture, readable: bool
) -> None:
    """The SuperLink hands such messages over with whichever reply is pulled next."""

    def in_anothers_name(metadata: Any, node: SuperNode) -> None:
        metadata.src_node_id = link.nodes[0].id

    def hostile(parcel: Parcel, node: SuperNode) -> Iterable[Parcel]:
        (more,) = says(in_anothers_name)(copy.deepcopy(parcel), node)
        if not readable:
            more.replace("MetricRecord", lambda body: b"\xff" * 9)
        more.head.metadata.reply_to_message_id = ""
        more.head.metadata.src_node_id = more.head.metadata.dst_node_id = SUPERLINK_NODE_ID
        return [more, parcel]

    node = link.join(federation.honest(9), hostile)
    with caplog.at_level("WARNING", "flwr"):
        train, evaluation = run(link)
    for at in train, evaluation:
        assert set(at.used) == {*honest(link), node.id}
        assert not at.rejected
        assert not at.ignored
    assert "1 messages ignored, which nodes pushed in the name of the SuperLink" in caplog.text


def test_a_node_cannot_guess_to_which_message_another_node_replies(link: SuperLink) -> None:
    """The SuperLink would take its reply, and refuse the reply of the other node as a second one.

    It knows its own message, the id of the other node, and the microsecond in which the message to
    that node was made.
    """
    asked: list[set[str]] = []
    victim = link.nodes[0]

    def hostile(parcel: Parcel, node: SuperNode) -> Iterable[Parcel]:
        stored = link.state.message_ins_store.values()
        (theirs,) = (m.metadata for m in stored if m.metadata.dst_node_id == victim.id)
        metadata = copy.deepcopy(node.message.metadata)
        own = make_message(metadata, node.message.content)
        assert own.object_id == metadata.message_id  # ids are known to be such hashes
        metadata.__dict__["_dst_node_id"] = victim.id
        metadata.__dict__["_created_at"] = theirs.created_at
        forged = copy.deepcopy(parcel)
        forged.head.metadata.src_node_id = victim.id
        forged.head.metadata.reply_to_message_id = own.object_id
        asked.append(node.push(forged))
        return [parcel]

    link.nodes.insert(0, SuperNode(federation.honest(9), hostile, wire=link.wire))
    for at in run(link):
        assert set(at.used) == {node.id for node in link.nodes}
    assert asked == [set(), set()]


def childless(parcel: Parcel) -> Parcel:
    """The chunks of arrays are not announced."""
    for one in iterate_object_tree(parcel.tree):
        if parcel.objects[one.object_id].startswith(b"Array "):
            del one.children[:]
    return parcel


def test_a_node_that_announces_an_object_of_another_without_its_children_hides_nothing(
    link: SuperLink,
) -> None:
    """Here it knows the whole reply of the other node; an array that nobody changes would do."""

    def hostile(parcel: Parcel, node: SuperNode) -> Iterable[Parcel]:
        same = federation.honest(0)(node.message)
        assert isinstance(same, Message)
        return [childless(Parcel.of(same))]

    node = SuperNode(federation.honest(9), hostile, wire=link.wire)
    link.nodes.insert(0, node)
    for at in run(link):
        assert set(at.used) == {*honest(link), node.id}


def test_a_node_that_names_objects_and_pushes_none_is_absent(link: SuperLink) -> None:
    node = link.join(federation.honest(9), lambda parcel, node: [childless(parcel)])
    train, _ = run(link)
    assert set(train.used) == honest(link)
    assert not train.rejected
    assert train.absent[node.id].startswith("error: Reply message objects are unavailable")


# -- time ------------------------------------------------------------------------------------------


def withheld(parcel: Parcel, node: SuperNode) -> Iterable[Parcel]:
    """One object is announced and not pushed."""
    parcel.withheld = {next(iter(parcel.objects))}
    return [parcel]


def test_a_node_that_withholds_an_object_holds_up_nobody(link: SuperLink) -> None:
    asked: list[str] = []

    def impatient(request: httpx.Request) -> None:
        """Ends the run if an object is asked for again before all other replies are pulled."""
        if request.url.path.endswith("/runtime/confirm-message-received"):
            asked.append("confirmed")
        if request.url.path.endswith("/runtime/pull-object"):
            asked.append(PullObjectRequest.FromString(request.content).object_id)
            if asked.count(asked[-1]) > 1 and asked.count("confirmed") < HONEST:
                raise AssertionError("others wait for an object that is not there")

    link.wire.fault = impatient
    silent = link.join(federation.honest(9), withheld)
    # The first look for replies takes all that are there, however long it takes.
    train, evaluation = run(link, timeout=1e-3)
    for at in train, evaluation:
        assert set(at.used) == honest(link)
        assert list(at.absent) == [silent.id]


def test_a_reply_whose_objects_come_late_is_used(link: SuperLink) -> None:
    late: list[tuple[SuperNode, Parcel]] = []
    pulled: list[str] = []

    def hostile(parcel: Parcel, node: SuperNode) -> Iterable[Parcel]:
        # What belongs to this reply alone: the message.
        parcel.withheld = {parcel.tree.object_id}
        late.append((node, parcel))
        return [parcel]

    def push_late(request: httpx.Request) -> None:
        if request.url.path.endswith("/runtime/pull-object"):
            pulled.append(PullObjectRequest.FromString(request.content).object_id)
        if late and late[0][1].tree.object_id in pulled[:-1]:
            node, parcel = late.pop()
            node.push_objects(parcel, parcel.withheld)

    link.wire.fault = push_late
    slow = link.join(federation.honest(9), hostile)
    train, evaluation = run(link)
    for at in train, evaluation:
        assert set(at.used) == {*honest(link), slow.id}
    assert not late


def test_a_node_that_is_silent_is_absent_when_the_time_is_over(link: SuperLink) -> None:
    silent = link.join(federation.honest(9), lambda parcel, node: [])
    for at in run(link, timeout=0.05):
        assert set(at.used) == honest(link)
        assert at.absent == {silent.id: "no reply"}


# -- the connection --------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:No path_separator:DeprecationWarning")  # of Flower's database
def test_a_reply_that_the_superlink_cannot_hand_over_is_absent_and_not_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a database, one that was made at no time (NaN) is an error of the SuperLink."""
    monkeypatch.setenv("FLWR_DATABASE", str(tmp_path / "state.db"))
    with superlink() as link:
        for k in range(HONEST):
            link.join(federation.honest(k))

        def timeless(parcel: Parcel, node: SuperNode) -> Iterable[Parcel]:
            parcel.head.metadata.created_at = float("nan")
            return [parcel]

        node = link.join(federation.honest(9), timeless)
        for at in run(link):
            assert set(at.used) == honest(link)
            assert not at.rejected
            reason = "error: the SuperLink does not hand over the reply: HTTPStatusError"
            assert at.absent == {node.id: reason}


def fails(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("certificate verify failed")  # which Flower does not try again


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (lambda request: httpx.Response(500), httpx.HTTPStatusError),
        (lambda request: httpx.Response(403), RunNotRunningException),
        (fails, httpx.ConnectError),
    ],
)
def test_an_error_of_the_connection_is_no_fault_of_the_nodes(
    link: SuperLink, fault: Callable[[httpx.Request], httpx.Response], error: type[Exception]
) -> None:
    begun: list[str] = []

    def cut(request: httpx.Request) -> httpx.Response | None:
        if request.url.path == PULL:
            begun.append(PULL)
        return fault(request) if begun else None

    link.wire.fault = cut
    strategy = RobustStrategy("Median()", f=1)
    with pytest.raises(error):
        strategy.start(link.grid, federation.record(federation.plain()), 1)
    (at,) = strategy.rounds
    assert not at.rejected
    assert len(begun) == 1


# -- other grids -----------------------------------------------------------------------------------


class Simulated(InMemoryGrid):
    """The grid of simulations, whose nodes act as soon as messages are pushed."""

    nodes: dict[int, federation.Node]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        pushed = super().push_messages(messages)
        for node, replies in self.nodes.items():
            for message in self.state.get_message_ins(node, limit=1):
                reply = replies(message)
                assert isinstance(reply, Message)
                reply.metadata.__dict__["_message_id"] = reply.object_id
                assert self.state.store_message_res(reply)
        return pushed


def test_the_grid_of_simulations_is_pulled_in_the_same_way(link: SuperLink) -> None:
    bad = link.join(federation.honest(9))
    grid = Simulated(link.factory)
    grid.set_run(link.grid.run)
    grid.nodes = {node.id: node.reply for node in link.nodes}
    grid.nodes[bad.id] = federation.hostile(federation.REJECTED["NaN"])
    strategy = RobustStrategy("Median()", f=1)
    strategy.start(grid, federation.record(federation.plain()), 1)
    assert set(strategy.rounds[0].used) == {node.id for node in link.nodes} - {bad.id}
    assert list(strategy.rounds[0].rejected) == [bad.id]
    assert set(strategy.evaluations[0].used) == set(grid.nodes)


def test_any_error_of_a_grid_at_one_reply_rejects_its_node() -> None:
    class Raises(federation.Nodes):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            (asked,) = message_ids
            if asked == "2":
                raise RecursionError
            return super().pull_messages([asked])

    grid = ReplyGrid(Raises(federation.honest_ones(3)))
    content = RecordDict({"arrays": federation.record(federation.plain())})
    at: Round[int] = Round(1, tuple(grid.get_node_ids()), 3, 1)
    messages = [message_to(content, MessageType.TRAIN, node, 1) for node in at.sampled]
    assert list(sort_replies(at, grid.send_and_receive(messages))) == [at.sampled[0], at.sampled[2]]
    assert at.rejected == {at.sampled[1]: "cannot be read: RecursionError"}
    assert not at.absent


# -- what is relied on beyond Flower's documentation -----------------------------------------------


def test_flowers_grid_of_deployments_asks_its_client_and_nothing_else(link: SuperLink) -> None:
    """`ReplyGrid` takes the place of that client, in a copy of the grid."""
    grid, between = ReplyGrid(link.grid)._grid_and_client()
    assert grid._runtime_client is between  # type: ignore[attr-defined]
    assert link.grid._runtime_client is between.client
    assert not next(iter(grid.pull_messages(["0"]))).has_content()
    answer = between.client.PullMessages(PullAppMessagesRequest(message_ids=["0"]))
    assert answer.messages_list[0].metadata.reply_to_message_id == "0"
