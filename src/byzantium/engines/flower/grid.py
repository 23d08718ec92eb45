"""Messages to nodes and their replies, of which none can damage or replace the reply of another.

A node chooses every byte of its reply. Flower's grid inflates the replies of a round together, so
one that cannot be inflated ends the run; it reads the sender from the bytes of the reply; it passes
on what a node pushes in the name of the SuperLink; and it waits, whatever the timeout, for objects
that a node has announced and not pushed. Here each reply is pulled separately, by the id of the
message that it answers, and only its content is read: the rest is known from that message, because
the SuperLink stores a reply under an id only if it claims to come from the node that was asked.
"""

from __future__ import annotations

import copy
import math
import random
import time
from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import DEFAULT_TTL, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_object_children_ids_from_object_content

from byzantium.engines.flower.nodes import logger
from byzantium.engines.flower.replies import UNREADABLE

# Seconds between two pulls, as in Flower.
SECONDS = 3.0
# Flower's code of an unknown error.
UNKNOWN = 0


def message_to(content: RecordDict, message_type: str, node: int, number: int) -> Message:
    """A message of a round to a node, with an id that other nodes cannot guess.

    The id is a hash of the message, and the SuperLink accepts a reply from any node that knows the
    id, in the name of the node to which the message went. So a part of the message is random: up to
    a second of its time to live.
    """
    return Message(
        content=content,
        message_type=message_type,
        dst_node_id=node,
        group_id=str(number),  # identifies replies to an earlier round
        ttl=DEFAULT_TTL + random.SystemRandom().random(),
    )


class Incomplete(Exception):  # noqa: N818
    """A reply was announced, and some of its objects are not there yet."""


class NoAnswer(Exception):  # noqa: N818
    """The SuperLink did not answer a request."""


class SuperLinkClient:
    """A wrapper of Flower's client of the SuperLink that pulls replies one at a time.

    It passes on only replies to the message that was asked for, does not wait for objects, and
    stores those of an incomplete reply, which the SuperLink hands over once. Nodes that send equal
    objects share them in the SuperLink, with the children that the first one announced: other
    children that an object names are pulled, too.
    """

    def __init__(self, client: Any) -> None:
        self.client = client
        self.ignored = 0
        self._pending: dict[str, tuple[Any, dict[str, Any]]] = {}
        self._tree: Any = None
        self._objects: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    def PullMessages(self, request: Any) -> Any:  # noqa: N802
        (message_id,) = request.message_ids
        if message_id not in self._pending:
            answer = _request(self.client.PullMessages, request)
            for k in reversed(range(len(answer.messages_list))):
                if answer.messages_list[k].metadata.reply_to_message_id != message_id:
                    del answer.messages_list[k], answer.message_object_trees[k]
                    self.ignored += 1
            self._pending[message_id] = answer, {}
        answer, self._objects = self._pending[message_id]
        self._tree = answer.message_object_trees[-1] if answer.message_object_trees else None
        return answer

    def PullObject(self, request: Any) -> Any:  # noqa: N802
        # Objects are named by their hashes: whichever reply asks for one gets the same.
        objects = self._objects
        if request.object_id not in objects:
            answer = _request(self.client.PullObject, request)
            if answer.object_found and not answer.object_available:
                raise Incomplete(request.object_id)
            objects[request.object_id] = answer
        return objects[request.object_id]

    def ConfirmMessageReceived(self, request: Any) -> Any:  # noqa: N802
        children = {
            child
            for answer in self._objects.values()
            for child in get_object_children_ids_from_object_content(answer.object_content)
        }
        if missing := children - self._objects.keys():
            for name in missing:
                self._tree.children.add(object_id=name)
            raise Incomplete(*missing)
        self._objects.clear()  # Flower's grid has all of them now
        return _request(self.client.ConfirmMessageReceived, request)

    def forget(self, message_id: str) -> None:
        """Forget what was pulled for a message."""
        self._pending.pop(message_id, None)
        self._objects = {}


def _request(call: Callable[[Any], Any], request: Any) -> Any:
    try:
        return call(request)
    except Exception as error:
        raise NoAnswer(type(error).__name__) from error


class ReplyGrid:
    """A grid that turns the failure to read one reply into an error reply.

    - `grid`: the grid of Flower that does everything else.

    A reply that cannot be read becomes an error with the code `UNREADABLE`: its node is rejected.
    One that the SuperLink does not hand over becomes another error: its node is absent, because
    this may not be its fault. An error of the connection itself is raised.
    """

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def __getattr__(self, name: str) -> Any:
        return getattr(self.grid, name)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Push messages, and pull their replies until all have arrived or the time is over."""
        messages = list(messages)
        if not messages:
            return []
        pushed = set(self.grid.push_messages(messages))
        waiting = {m.metadata.message_id: m for m in messages if m.metadata.message_id in pushed}
        end = math.inf if timeout is None else time.monotonic() + timeout
        grid, client = self._grid_and_client()
        replies: list[Message] = []
        while waiting and time.monotonic() < end:
            for message in list(waiting.values()):
                if new := self._pull(message, grid, client):
                    del waiting[message.metadata.message_id]
                    replies += new
            if waiting:
                seconds = float(getattr(self.grid, "pull_interval", SECONDS))
                time.sleep(max(0.0, min(seconds, end - time.monotonic())))
        if client.ignored:
            logger.warning(
                "\t> %d messages ignored, which nodes pushed in the name of the SuperLink",
                client.ignored,
            )
        return replies

    def _grid_and_client(self) -> tuple[Grid, SuperLinkClient]:
        """A copy of the grid with a wrapped client, if it is the grid of deployments."""
        client = SuperLinkClient(getattr(self.grid, "_runtime_client", None))
        if client.client is None:
            return self.grid, client
        grid = copy.copy(self.grid)
        vars(grid)["_client"] = client
        return grid, client

    def _pull(self, message: Message, grid: Grid, client: SuperLinkClient) -> list[Message]:
        """The replies to one message, from the node that was asked; none if they are incomplete."""
        message_id = message.metadata.message_id
        try:
            replies = [_reply_to(message, reply) for reply in grid.pull_messages([message_id])]
        except Incomplete:
            return []
        except Exception as error:
            client.forget(message_id)
            # Another request fails, too, if the connection is at fault.
            list(self.grid.get_node_ids())
            if isinstance(error, NoAnswer):
                failure = Error(UNKNOWN, f"the SuperLink does not hand over the reply: {error}")
            else:
                failure = Error(UNREADABLE, f"cannot be read: {type(error).__name__}")
            return [Message(failure, reply_to=message)]
        client.forget(message_id)
        return replies


def _reply_to(message: Message, reply: Message) -> Message:
    """A reply to a message, of which only the content or the error is used."""
    if reply.has_error():
        return Message(reply.error, reply_to=message)
    return Message(reply.content, reply_to=message)
