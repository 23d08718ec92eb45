"""The client: as in Flower's own examples. Only the mods are Byzantium's."""

from __future__ import annotations

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable

from byzantium.engines.flower import byzantine, worker_momentum
from robust.task import network, part, test, train


def momentum(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Momentum, with the beta of the run."""
    return worker_momentum(float(context.run_config["beta"]))(message, context, call_next)


def rehearsed(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Misbehaviour, where the run or the message asks this client for it: only to rehearse."""
    config = message.content.config_records.get("config") or ConfigRecord()
    for deed in str(config.get("hostile", context.run_config["hostile"])).split(";"):
        who, _, what = deed.partition(":")
        if what and int(who) == int(context.node_config["partition-id"]):
            return byzantine(what.strip())(message, context, call_next)
    return call_next(message, context)


app = ClientApp(mods=[rehearsed, momentum])


@app.train()
def train_on_own_data(message: Message, context: Context) -> Message:
    """Train the model that came, and send it back."""
    model = network()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    x, y = part(
        int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    )
    metrics = {"train_loss": train(model, x, y), "num-examples": len(x)}
    content = RecordDict(
        {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(dict(metrics))}
    )
    return Message(content=content, reply_to=message)


@app.evaluate()
def evaluate_on_own_data(message: Message, context: Context) -> Message:
    """Test the model that came."""
    model = network()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    x, y = part(
        int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    )
    loss, accuracy = test(model, x, y)
    metrics = {"loss": loss, "accuracy": accuracy, "num-examples": len(x)}
    return Message(content=RecordDict({"metrics": MetricRecord(dict(metrics))}), reply_to=message)
