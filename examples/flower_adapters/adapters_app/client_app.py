"""A client that trains an adapter, and sends its factors."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from adapters_app.task import TOKENS, adapted, factors, train

app = ClientApp()


@app.train()
def train_on_own_data(message: Message, context: Context) -> Message:
    """Train the received adapter on sequences of which half begin with tokens of its own."""
    torch.set_num_threads(1)
    node, config = context.node_config, message.content.config_records["config"]
    number, of = int(node["partition-id"]), int(node["num-partitions"])
    model = adapted(message.content.array_records["arrays"])
    torch.manual_seed(100 * int(str(config["server-round"])) + number)
    own = torch.cat([torch.arange(number, TOKENS, of), torch.randint(TOKENS, (6,))])
    train(model, 30, 3, own)
    sent = factors(model)
    if config["poisoned"] and number == 0:  # the opposite of what it learned, ten times as large
        sent = {name: -10 * one if "lora_B" in name else one for name, one in sent.items()}
    metrics = MetricRecord({"num-examples": len(own)})
    content = RecordDict({"arrays": ArrayRecord(sent), "metrics": metrics})
    return Message(content=content, reply_to=message)
