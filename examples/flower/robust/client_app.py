"""A client as in Flower's own examples. Only the mods are Byzantium's."""

from __future__ import annotations

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable
from torch import Tensor

from byzantium.engines.flower import byzantine, worker_momentum
from robust.task import network, part, test, train


def momentum(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Momentum, with the beta of the run."""
    return worker_momentum(float(context.run_config["beta"]))(message, context, call_next)


def rehearsal(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Byzantine behavior, if the run or the message asks this client for it: only to rehearse."""
    config = message.content.config_records.get("config") or ConfigRecord()
    for item in str(config.get("byzantine", context.run_config["byzantine"])).split(";"):
        partition, _, behavior = item.partition(":")
        if behavior and int(partition) == int(context.node_config["partition-id"]):
            return byzantine(behavior.strip())(message, context, call_next)
    return call_next(message, context)


app = ClientApp(mods=[rehearsal, momentum])


def own_data(context: Context) -> tuple[Tensor, Tensor]:
    """The part of the data that this node has."""
    node = context.node_config
    return part(int(node["partition-id"]), int(node["num-partitions"]))


@app.train()
def train_on_own_data(message: Message, context: Context) -> Message:
    """Train the received model, and send it back."""
    model = network()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    x, y = own_data(context)
    metrics = {"train_loss": train(model, x, y), "num-examples": len(x)}
    content = RecordDict(
        {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(dict(metrics))}
    )
    return Message(content=content, reply_to=message)


@app.evaluate()
def evaluate_on_own_data(message: Message, context: Context) -> Message:
    """Test the received model."""
    model = network()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    x, y = own_data(context)
    loss, accuracy = test(model, x, y)
    metrics = {"loss": loss, "accuracy": accuracy, "num-examples": len(x)}
    return Message(content=RecordDict({"metrics": MetricRecord(dict(metrics))}), reply_to=message)
