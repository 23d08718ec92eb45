"""A federation in one process: nodes are functions, and messages are handed to them."""

from __future__ import annotations

import functools
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from byzantium.engines.flower import RobustStrategy

# Without these no message can be made outside of an engine.
TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1

# Flower's are random numbers of 64 bits.
FIRST = 2**63 + 11

Arrays = dict[str, np.ndarray[Any, Any]]
Node = Callable[[Message], Message | list[Message] | None]


class Nodes(Grid):
    """A grid whose nodes are functions of a message; None is silence.

    A pull reports a silent node as gone, like the SuperLink does with a node that is offline.
    """

    def __init__(self, nodes: dict[int, Node]) -> None:
        self.nodes = nodes
        self.sent: list[list[Message]] = []
        self.ids = map(str, itertools.count(1))
        self.replies: dict[str, list[Message]] = {}

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any: ...

    def create_message(self, *_: Any, **__: Any) -> Any: ...

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self.sent.append(list(messages))
        for message in self.sent[-1]:
            message.metadata.__dict__["_message_id"] = next(self.ids)
            reply = self.nodes[message.metadata.dst_node_id](message)
            self.replies[message.metadata.message_id] = (
                reply if isinstance(reply, list) else [] if reply is None else [reply]
            )
        return [message.metadata.message_id for message in self.sent[-1]]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        sent = {message.metadata.message_id: message for message in self.sent[-1]}
        return [
            reply
            for name in message_ids
            for reply in self.replies.pop(name) or [Message(Error(5), reply_to=sent[name])]
        ]

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return [reply for name in self.push_messages(messages) for reply in self.replies.pop(name)]


def model() -> Arrays:
    """Arrays of all kinds: of no dimension, empty, of half precision, whole numbers."""
    return {
        "weight": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4),
        "half": np.linspace(0, 1, 5, dtype=np.float16),
        "scale": np.array(1.5, dtype=np.float32),
        "nothing": np.zeros((0, 3), dtype=np.float32),
        "batches": np.array(7, dtype=np.int64),
        "mask": np.array([True, False, True]),
    }


def plain(d: int = 6) -> Arrays:
    return {"weight": np.zeros(d, dtype=np.float32)}


def record(arrays: Arrays) -> ArrayRecord:
    return ArrayRecord(OrderedDict((key, Array(array)) for key, array in arrays.items()))


def arrays_of(record: ArrayRecord) -> Arrays:
    return {key: array.numpy() for key, array in record.items()}


def received(message: Message) -> Arrays:
    return arrays_of(message.content.array_records["arrays"])


def changed(arrays: Arrays, by: Callable[[str, np.ndarray[Any, Any]], Any]) -> Arrays:
    """The numbers that are no whole ones changed; dtypes and shapes stay."""
    return {
        key: np.asarray(a + np.asarray(by(key, a)), dtype=a.dtype) if a.dtype.kind == "f" else a
        for key, a in arrays.items()
    }


def trained(message: Message, seed: int, size: float = 0.1) -> Arrays:
    """What an honest node sends: the model moved by 0.5 in every coordinate, give or take."""
    rng = np.random.default_rng([seed, int(message.metadata.group_id)])
    return changed(received(message), lambda key, a: 0.5 + size * rng.uniform(-1, 1, a.shape))


def reply(message: Message, arrays: Arrays | ArrayRecord | None, **metrics: Any) -> Message:
    content = RecordDict()
    if arrays is not None:
        content["arrays"] = arrays if isinstance(arrays, ArrayRecord) else record(arrays)
    named = {name.replace("_", "-"): value for name, value in metrics.items()}
    content["metrics"] = MetricRecord(named)
    return Message(content, reply_to=message)


def one_round(
    strategy: RobustStrategy, grid: Nodes, model: Arrays, number: int = 1
) -> tuple[Arrays | None, MetricRecord]:
    """The model after a round, and the metrics of the round."""
    messages = strategy.configure_train(number, record(model), ConfigRecord(), grid)
    arrays, metrics = strategy.aggregate_train(number, grid.send_and_receive(messages))
    assert metrics is not None
    return None if arrays is None else arrays_of(arrays), metrics


def honest(seed: int, size: float = 0.1) -> Node:
    def node(message: Message) -> Message:
        said = {"num_examples": 60, "loss": 1.0 + seed / 100}
        if message.metadata.message_type == "evaluate":
            return reply(message, None, accuracy=0.9, **said)
        return reply(message, trained(message, seed, size), **said)

    return node


@functools.cache
def canned(seed: int) -> Node:
    """An honest node that replies to everything as it did to its first message."""
    contents: list[RecordDict] = []

    def node(message: Message) -> Message:
        if not contents:
            contents.append(honest(seed)(message).content)  # type: ignore[union-attr]
        return Message(contents[0], reply_to=message)

    return node


def honest_ones(count: int, first: int = 0) -> dict[int, Node]:
    return {FIRST + k: honest(k) for k in range(first, first + count)}


# -- hostility ------------------------------------------------------------------------------------

Wrong = Callable[[Message, Message], Message | list[Message] | None]


def _arrays(change: Callable[[Arrays], Arrays | ArrayRecord]) -> Wrong:
    def wrong(message: Message, good: Message) -> Message:
        arrays = arrays_of(good.content.array_records["arrays"])
        return reply(message, change(arrays), num_examples=60, loss=1.0)

    return wrong


def _values(value: float) -> Wrong:
    return _arrays(lambda arrays: changed(arrays, lambda key, a: np.full(a.shape, value)))


def _first(array: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]) -> Wrong:
    """The first array replaced by another."""
    return _arrays(lambda arrays: {**arrays, "weight": array(arrays["weight"])})


def _bytes(change: Callable[[Array], Array]) -> Wrong:
    """The bytes of the first array, or what is said beside them, replaced."""

    def wrong(arrays: Arrays) -> ArrayRecord:
        sent = record(arrays)
        sent["weight"] = change(sent["weight"])
        return sent

    return _arrays(wrong)


def _header(text: str, body: bytes = b"\0" * 48) -> Wrong:
    """An array whose header is this text."""
    head = text.encode() + b"\n"
    data = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + body
    return _bytes(lambda array: Array("float32", (3, 4), "numpy.ndarray", data))


def _said(**metrics: Any) -> Wrong:
    def wrong(message: Message, good: Message) -> Message:
        return reply(message, good.content.array_records["arrays"], **metrics)

    return wrong


def _stranger(message: Message, good: Message) -> list[Message]:
    good.metadata.__dict__["_src_node_id"] = 5
    return [good]


def _late(message: Message, good: Message) -> Message:
    good.metadata.group_id = "0"
    return good


def _no_content(message: Message, good: Message) -> Message:
    return Message(RecordDict(), reply_to=message)


def _two_records(message: Message, good: Message) -> Message:
    good.content["more"] = good.content.array_records["arrays"]
    return good


def _failed(message: Message, good: Message) -> Message:
    return Message(Error(1, "boom\n\x1b[31m" * 1000), reply_to=message)


def _pickled() -> Array:
    # What would happen if it were unpickled.
    bomb = b"cos\n_exit\n(I66\ntR."
    head = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n"
    data = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + bomb
    return Array("object", (1,), "numpy.ndarray", data)


REJECTED: dict[str, Wrong] = {
    "NaN": _values(np.nan),
    "one NaN": _first(lambda a: np.where(a == a.max(), np.float32(np.nan), a)),
    "inf": _values(np.inf),
    "-inf": _values(-np.inf),
    "1e30": _first(lambda a: np.full_like(a, 1e30)),
    "transposed": _first(lambda a: a.T.copy()),
    "broadcastable": _first(lambda a: a[:1]),
    "of no dimension": _first(lambda a: np.array(1.0, dtype=np.float32)),
    "empty": _first(lambda a: a[:0]),
    "flat": _first(lambda a: a.reshape(-1)),
    "missing key": _arrays(lambda arrays: {"weight": arrays["weight"]}),
    "extra key": _arrays(lambda arrays: {**arrays, "more": np.zeros(3)}),
    "renamed key": _arrays(lambda arrays: {f"{key}_": a for key, a in arrays.items()}),
    "no arrays": _arrays(lambda arrays: {}),
    "float64": _first(lambda a: a.astype(np.float64)),
    "int32": _first(lambda a: a.astype(np.int32)),
    "complex": _first(lambda a: a.astype(np.complex64)),
    "texts": _first(lambda a: np.full((3, 4), "a")),
    "counter as float": _arrays(lambda arrays: {**arrays, "batches": np.array(1e9)}),
    "object": _bytes(lambda array: _pickled()),
    "negative size": _header("{'descr': '<f4', 'fortran_order': False, 'shape': (-3, -4), }"),
    "lying header": _header("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 400000000), }"),
    "huge header": _header(
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }" + " " * 9000
    ),
    "nested header": _header("{'descr': " + "[" * 900 + "]" * 900 + "}"),
    "code as header": _header("{'descr': '<f4', 'fortran_order': exit(66), 'shape': (3, 4), }"),
    "structured": _header("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (3, 4), }"),
    "empty and huge": _header(
        "{'descr': '<f4', 'fortran_order': False, 'shape': (0, 999999999999999999), }", b""
    ),
    "garbage": _bytes(lambda array: Array("float32", (3, 4), "numpy.ndarray", b"\x93NUMPYgarbage")),
    "no bytes": _bytes(lambda array: Array("float32", (3, 4), "numpy.ndarray", b"")),
    "a pickle": _bytes(
        lambda array: Array("float32", (3, 4), "numpy.ndarray", b"cos\n_exit\n(I66\ntR.")
    ),
    "other serialisation": _bytes(lambda array: Array("float32", (3, 4), "pickle", array.data)),
    "too many bytes": _bytes(
        lambda array: Array("float32", (3, 4), "numpy.ndarray", array.data + b"\0" * 100000)
    ),
    "cut short": _bytes(lambda array: Array("float32", (3, 4), "numpy.ndarray", array.data[:-1])),
    "extra metric": _said(num_examples=60, loss=1.0, more=1.0),
    "no number of examples": _said(loss=1.0),
    "negative number of examples": _said(num_examples=-60, loss=1.0),
    "NaN examples": _said(num_examples=float("nan"), loss=1.0),
    "a list of examples": _said(num_examples=[1, 2], loss=1.0),
    "no content": _no_content,
    "two records": _two_records,
    "two replies": lambda message, good: [good, good],
}
ABSENT: dict[str, Wrong] = {
    "silence": lambda message, good: None,
    "error": _failed,
    "late": _late,
    "in another's name": _stranger,
}
USED: dict[str, Wrong] = {
    "reordered keys": _arrays(lambda arrays: dict(reversed(arrays.items()))),
    "big-endian": _first(lambda a: a.astype(">f4")),
    "by columns": _first(np.asfortranarray),
    "other fields beside the bytes": _bytes(
        lambda array: Array("float16", (-1,), "numpy.ndarray", array.data)
    ),
    "a billion examples": _said(num_examples=10**9, loss=1.0),
    "NaN loss": _said(num_examples=60, loss=float("nan")),
}
# What looks like a reply and is an attack; rules see to it.
LIES: dict[str, Wrong] = {
    "far away": _values(1e4),
    "opposite": _values(-5.0),
    "counter and mask": _arrays(
        lambda arrays: {**arrays, "batches": np.array(2**62), "mask": ~arrays["mask"]}
    ),
}


def hostile(wrong: Wrong, seed: int = 0) -> Node:
    def node(message: Message) -> Any:
        if message.metadata.message_type == "evaluate":
            return honest(seed)(message)
        return wrong(message, honest(seed)(message))  # type: ignore[arg-type]

    return node
