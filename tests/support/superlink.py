"""A SuperLink of Flower in this process, to which a server and nodes speak in bytes.

Everything from the request to the store of objects is Flower's own; only the network is left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import federation
import httpx
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.constant import HEARTBEAT_MAX_INTERVAL, NOOP_FLWR_AID, SUPERLINK_NODE_ID
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.message_pb2 import ObjectTree, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_id,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid
from flwr.superlink.main import create_app
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor


class Wire(httpx.BaseTransport):
    """Requests become calls of the SuperLink's application; `fault` may answer them first."""

    def __init__(self, app: Any) -> None:
        self.inner = httpx.ASGITransport(app, raise_app_exceptions=False)
        self.fault: Callable[[httpx.Request], httpx.Response | None] = lambda request: None

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if (answer := self.fault(request)) is not None:
            return answer

        async def answered() -> httpx.Response:
            response = await self.inner.handle_async_request(request)
            content = await response.aread()
            return httpx.Response(response.status_code, headers=response.headers, content=content)

        return asyncio.run(answered())


@dataclass
class Parcel:
    """A reply in bytes, as a node pushes it: what the SuperLink checks, and the objects.

    - `head`: the message without its content; the SuperLink compares it with what was pushed.
    - `tree`: which objects there are, as the node says.
    - `objects`: the objects by their names, which are their hashes; the message is the last one.
    - `withheld`: the names of objects that are not pushed.
    """

    head: ProtoMessage
    tree: ObjectTree
    objects: dict[str, bytes]
    withheld: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, message: Message) -> Parcel:
        nested = get_all_nested_objects(message)
        message.metadata.__dict__["_message_id"] = message.object_id
        head = message_to_proto(remove_content_from_message(message))
        objects = {name: one.deflate() for name, one in nested.items()}
        return cls(head, get_object_tree(message), objects)

    def replace(self, kind: str, change: Callable[[bytes], bytes]) -> Parcel:
        """Replace the bodies of the objects of a kind; names, heads and parents follow."""
        renamed: dict[str, str] = {}
        objects: dict[str, bytes] = {}
        for name, content in self.objects.items():  # children before their parents
            head, _, body = content.partition(b"\x00")
            of, children, _ = head.decode().split(" ")
            for old, new in renamed.items():
                children = children.replace(old, new)
                body = body.replace(old.encode(), new.encode())
            if of == kind:
                body = change(body)
            made = f"{of} {children} {len(body)}".encode() + b"\x00" + body
            renamed[name] = get_object_id(made)
            objects[renamed[name]] = made
        for tree in iterate_object_tree(self.tree):
            tree.object_id = renamed[tree.object_id]
        self.objects = objects
        self.head.metadata.message_id = self.tree.object_id
        return self


Hostile = Callable[[Parcel, "SuperNode"], Iterable[Parcel]]


class SuperNode:
    """A node with a key of its own: Flower's client of the Fleet API, without a ClientApp.

    - `reply`: what an honest node would send.
    - `hostile`: what is pushed instead.
    - `address`: where the SuperLink is.
    - `wire`: how it is reached, if not by the network.

    `message` is what it received last.
    """

    message: Message
    session: str

    def __init__(
        self,
        reply: federation.Node,
        hostile: Hostile | None = None,
        address: str = "http://superlink",
        wire: Wire | None = None,
    ) -> None:
        self.reply, self.hostile = reply, hostile
        private, public = generate_key_pairs()
        self.client = FleetHttpClient(
            address,
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                NodeAuthHttpInterceptor(private, public),
            ],
        )
        self.client._client = httpx.Client(transport=wire)
        key = public_key_to_bytes(public)
        self.client.RegisterNode(RegisterNodeFleetRequest(public_key=key))
        self.id = self.client.ActivateNode(
            ActivateNodeRequest(public_key=key, heartbeat_interval=HEARTBEAT_MAX_INTERVAL)
        ).node_id
        self.node = Node(node_id=self.id)

    def act(self) -> None:
        """Take a message, if there is one, and reply to it."""
        answer = self.client.PullMessages(PullMessagesRequest(node=self.node))
        for head, tree in zip(answer.messages_list, answer.message_object_trees, strict=True):
            names = [one.object_id for one in iterate_object_tree(tree)]
            run = head.metadata.run_id
            pull = make_pull_object_fn_protobuf(self.client.PullObject, self.node, run)
            message = inflate_object_from_contents(tree.object_id, pull_objects(names, pull))
            assert isinstance(message, Message)
            self.message = message
            message.metadata.__dict__["_message_id"] = head.metadata.message_id
            reply = self.reply(message)
            assert isinstance(reply, Message)
            parcel = Parcel.of(reply)
            for one in [parcel] if self.hostile is None else self.hostile(parcel, self):
                self.push(one)

    def push(self, parcel: Parcel) -> set[str]:
        """Announce a reply, and push its objects; which of them the SuperLink asked for."""
        answer = self.client.PushMessages(
            PushMessagesRequest(
                node=self.node, messages_list=[parcel.head], message_object_trees=[parcel.tree]
            )
        )
        asked = set(answer.objects_to_push)
        self.session = answer.session_id
        self.push_objects(parcel, asked & (parcel.objects.keys() - parcel.withheld))
        return asked

    def push_objects(self, parcel: Parcel, names: set[str]) -> None:
        """Push objects of the reply that was announced last."""
        for name in names:
            stored = self.client.PushObject(
                PushObjectRequest(
                    node=self.node,
                    run_id=parcel.head.metadata.run_id,
                    object_id=name,
                    object_content=parcel.objects[name],
                    session_id=self.session,
                )
            ).stored
            assert stored, "the SuperLink refused an object"


class Server(HttpGrid):
    """Flower's grid of a deployment; nodes act as soon as messages are pushed."""

    pull_interval = 0.01

    def __init__(self, link: SuperLink, token: str) -> None:
        super().__init__(token=token)
        self.link = link
        self._client = RuntimeHttpClient(
            "http://superlink",
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="flwr-serverapp"),
                RuntimeTokenHttpInterceptor(token=token),
            ],
            retry_invoker=make_simple_http_retry_invoker(),
        )
        self._client._client = httpx.Client(transport=link.wire)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        pushed = super().push_messages(messages)
        for node in self.link.nodes:
            node.act()
        return pushed


class SuperLink:
    """Flower's SuperLink with one run, whose ServerApp is the test."""

    def __init__(self) -> None:
        app = create_app()
        self.wire = Wire(app)
        self.factory = app.state.linkstate_factory
        self.state: Any = self.factory.state()
        self.run_id = self.state.create_run(
            "", "", "", {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP
        )
        (run,) = self.state.get_run_info(run_ids=[self.run_id])
        token = self.state.claim_task(run.primary_task_id)
        assert self.state.activate_task(run.primary_task_id)
        if tokens := getattr(self.state, "task_token_store", None):  # no heartbeat is sent
            tokens[run.primary_task_id].active_until = now() + timedelta(days=1)
        self.nodes: list[SuperNode] = []
        self.grid = Server(self, token)
        self.grid.set_run(run)

    def join(self, reply: federation.Node, hostile: Hostile | None = None) -> SuperNode:
        self.nodes.append(SuperNode(reply, hostile, wire=self.wire))
        return self.nodes[-1]


@contextmanager
def superlink() -> Iterator[SuperLink]:
    """A SuperLink; messages that are made meanwhile are of its run."""
    before = TaskIdentity.run_id, TaskIdentity.node_id
    link = SuperLink()
    TaskIdentity.run_id, TaskIdentity.node_id = link.run_id, SUPERLINK_NODE_ID
    try:
        yield link
    finally:
        TaskIdentity.run_id, TaskIdentity.node_id = before
