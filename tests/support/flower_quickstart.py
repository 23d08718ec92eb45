"""A client in the style of Flower's quickstart for PyTorch: nothing here knows of Byzantium."""

import torch
import torch.nn as nn
import torch.nn.functional as F  # noqa: N812
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """A small network for images of 3 x 32 x 32, with a normalisation that counts its batches."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.norm = nn.BatchNorm2d(6)
        self.pool = nn.MaxPool2d(4, 4)
        self.fc1 = nn.Linear(6 * 7 * 7, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(F.relu(self.norm(self.conv1(x))))
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc2(x)


def load_data(partition_id: int) -> DataLoader:  # type: ignore[type-arg]
    """Images that are bright in a place of their class."""
    generator = torch.Generator().manual_seed(partition_id)
    y = torch.randint(10, (64,), generator=generator)
    x = 0.1 * torch.randn(64, 3, 32, 32, generator=generator)
    for k, label in enumerate(y.tolist()):
        x[k, :, 3 * label : 3 * label + 3] += 1
    return DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)


def train(net: nn.Module, loader: DataLoader, lr: float) -> float:  # type: ignore[type-arg]
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    running_loss = 0.0
    for _ in range(2):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(net(images), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            running_loss += loss.item()
    return running_loss / (2 * len(loader))


app = ClientApp()


@app.train()
def train_fn(msg: Message, context: Context) -> Message:
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())  # type: ignore[union-attr]
    loader = load_data(int(context.node_config["partition-id"]))
    train_loss = train(model, loader, float(msg.content["config"]["lr"]))  # type: ignore[arg-type]
    metrics = {"train_loss": train_loss, "num-examples": len(loader.dataset)}  # type: ignore[arg-type]
    content = RecordDict(
        {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)}  # type: ignore[arg-type]
    )
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate_fn(msg: Message, context: Context) -> Message:
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())  # type: ignore[union-attr]
    model.eval()
    loader = load_data(100 + int(context.node_config["partition-id"]))
    correct, loss = 0, 0.0
    with torch.no_grad():
        for images, labels in loader:
            outputs = model(images)
            loss += F.cross_entropy(outputs, labels).item()
            correct += int((outputs.argmax(1) == labels).sum())
    metrics = {
        "eval_loss": loss / len(loader),
        "eval_acc": correct / len(loader.dataset),  # type: ignore[arg-type]
        "num-examples": len(loader.dataset),  # type: ignore[arg-type]
    }
    return Message(content=RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)  # type: ignore[arg-type]
