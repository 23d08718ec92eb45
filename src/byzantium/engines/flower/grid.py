"""Messages to nodes and their replies: a reply can spoil no other, and speaks for no other node.

A node chooses every byte of its reply. Flower's grid inflates the replies of a round together, so
one that cannot be inflated ends the run; it reads the sender in the bytes of the reply; it passes
on what a node pushes in the name of the SuperLink; and it waits, whatever the timeout, for objects
that a node has announced and not pushed. Here each reply is pulled by itself, by the id of the
message that it answers, and everything but its content is taken from that message: the SuperLink
stores a reply under an id only if it claims to come from the node to which that message went.
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

from byzantium.engines.flower.replies import UNREADABLE
from byzantium.engines.flower.rounds import logger

# Flower's own, between two looks for replies.
SECONDS = 3.0
# Flower's code of an error that is nobody's in particular.
UNKNOWN = 0


def addressed(content: RecordDict, kind: str, node: int, number: int) -> Message:
    """A message of a round to a node, with an id that other nodes cannot guess.

    The id is a hash of the message, and the SuperLink takes a reply to it from any node that knows
    it, in the name of the node to which it went. So a part of it is drawn at random: by how much
    less than a second it lives longer than others.
    """
    return Message(
        content=content,
        message_type=kind,
        dst_node_id=node,
        group_id=str(number),  # a reply to an earlier round says so
        ttl=DEFAULT_TTL + random.SystemRandom().random(),
    )


class Incomplete(Exception):  # noqa: N818
    """A reply was announced, and some of its objects are not there yet."""


class Unanswered(Exception):  # noqa: N818
    """The SuperLink did not answer a request."""


class Link:
    """Flower's client of the SuperLink, for replies that are pulled one at a time.

    It passes on replies to what was asked for and nothing else, does not wait for objects, and
    holds those of an incomplete reply, which the SuperLink hands over once. Nodes that send equal
    objects share them in the SuperLink, with the children that the first one announced: whatever
    an object names beyond these is pulled, too.
    """

    def __init__(self, client: Any) -> None:
        self.client = client
        self.ignored = 0
        self._begun: dict[str, tuple[Any, dict[str, Any]]] = {}
        self._tree: Any = None
        self._objects: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    def PullMessages(self, request: Any) -> Any:  # noqa: N802
        (asked,) = request.message_ids
        if asked not in self._begun:
            answer = _answered(self.client.PullMessages, request)
            for k in reversed(range(len(answer.messages_list))):
                if answer.messages_list[k].metadata.reply_to_message_id != asked:
                    del answer.messages_list[k], answer.message_object_trees[k]
                    self.ignored += 1
            self._begun[asked] = answer, {}
        answer, self._objects = self._begun[asked]
        self._tree = answer.message_object_trees[-1] if answer.message_object_trees else None
        return answer

    def PullObject(self, request: Any) -> Any:  # noqa: N802
        # Objects are named by their hashes: whichever reply asks for one gets the same.
        objects = self._objects
        if request.object_id not in objects:
            answer = _answered(self.client.PullObject, request)
            if answer.object_found and not answer.object_available:
                raise Incomplete(request.object_id)
            objects[request.object_id] = answer
        return objects[request.object_id]

    def ConfirmMessageReceived(self, request: Any) -> Any:  # noqa: N802
        named = {
            child
            for answer in self._objects.values()
            for child in get_object_children_ids_from_object_content(answer.object_content)
        }
        if missing := named - self._objects.keys():
            for name in missing:
                self._tree.children.add(object_id=name)
            raise Incomplete(*missing)
        self._objects.clear()  # Flower's grid has all of them now
        return _answered(self.client.ConfirmMessageReceived, request)

    def finish(self, asked: str) -> None:
        """Forget what was pulled for a message."""
        self._begun.pop(asked, None)
        self._objects = {}


def _answered(ask: Callable[[Any], Any], request: Any) -> Any:
    try:
        return ask(request)
    except Exception as error:
        raise Unanswered(type(error).__name__) from error


class Replies(Grid):
    """A grid that turns whatever goes wrong with one reply into a reply that says so.

    - `grid`: the grid of Flower to which everything else is left.

    A reply that cannot be read becomes an error with the code `UNREADABLE`: its node is rejected.
    One that the SuperLink does not hand over becomes another error: its node is absent, because
    this may not be its fault. An error of the connection itself is raised.
    """

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def set_run(self, run: Any) -> None:
        self.grid.set_run(run)

    @property
    def run(self) -> Any:
        return self.grid.run

    def create_message(self, *args: Any, **options: Any) -> Message:
        return self.grid.create_message(*args, **options)

    def get_node_ids(self) -> Iterable[int]:
        return self.grid.get_node_ids()

    def get_nodes(self) -> Iterable[Any]:
        return self.grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self.grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self.grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Push messages, and pull their replies until all are there or the time is over."""
        messages = list(messages)
        if not messages:
            return []
        pushed = set(self.grid.push_messages(messages))
        waiting = {m.metadata.message_id: m for m in messages if m.metadata.message_id in pushed}
        end = math.inf if timeout is None else time.monotonic() + timeout
        grid, link = self._linked()
        replies: list[Message] = []
        while waiting and time.monotonic() < end:
            for message in list(waiting.values()):
                if found := self._pulled(message, grid, link):
                    del waiting[message.metadata.message_id]
                    replies += found
            if waiting:
                seconds = float(getattr(self.grid, "pull_interval", SECONDS))
                time.sleep(max(0.0, min(seconds, end - time.monotonic())))
        if link.ignored:
            logger.warning(
                "\t> %d messages ignored, which nodes pushed in the name of the SuperLink",
                link.ignored,
            )
        return replies

    def _linked(self) -> tuple[Grid, Link]:
        """The grid with a link between it and the SuperLink, if it is the one of deployments."""
        link = Link(getattr(self.grid, "_runtime_client", None))
        if link.client is None:
            return self.grid, link
        grid = copy.copy(self.grid)
        vars(grid)["_client"] = link
        return grid, link

    def _pulled(self, message: Message, grid: Grid, link: Link) -> list[Message]:
        """The replies to one message, with the sender that the SuperLink knows; none is not yet."""
        asked = message.metadata.message_id
        try:
            found = [_of(message, reply) for reply in grid.pull_messages([asked])]
        except Incomplete:
            return []
        except Exception as error:
            link.finish(asked)
            # What has nothing to do with this reply fails too if the connection is at fault.
            list(self.grid.get_node_ids())
            unanswered = isinstance(error, Unanswered)
            reason = (
                f"the SuperLink does not hand over the reply: {error}"
                if unanswered
                else f"cannot be read: {type(error).__name__}"
            )
            code = UNKNOWN if unanswered else UNREADABLE
            return [Message(Error(code, reason), reply_to=message)]
        link.finish(asked)
        return found


def _of(message: Message, reply: Message) -> Message:
    """A reply as an answer to a message, whatever it says of itself."""
    if reply.has_error():
        return Message(reply.error, reply_to=message)
    return Message(reply.content, reply_to=message)
