"""A node of a federation as a Flower ClientApp. Flower starts a new process for each message: all that a node keeps is
in its device folder."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from federec.network import device
from federec.network.device_folder import DeviceFolder
from federec.network.keys import Key
from federec.network.messages import Order, Reply
from federec.runtimes.flower import secure
from federec.runtimes.flower.records import packed, unpacked

app = ClientApp()


@app.query()
@app.evaluate()
def answer(message: Message, context: Context) -> Message:
    """Do what the message says."""
    reply = device.answer(lambda: closing(open_folder(context)), unpacked(message.content))
    return Message(packed(reply), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Do what the message says. Everything that belongs to secure aggregation comes this way, too."""
    if not secure.belongs(message):
        return answer(message, context)

    def carry_out(order: Order) -> tuple[Reply, device.Work]:
        with closing(open_folder(context)) as folder:
            work = device.Work(order, folder)
            return work.carry_out(), work

    try:
        return secure.answer(message, context, carry_out)
    except Exception:  # Flower tells the server the text of an error, which may hold what is private
        device.log.exception("secure aggregation")
        raise RuntimeError("the device could not do it; its own log says why") from None


def open_folder(context: Context) -> DeviceFolder:
    """The folder that the SuperNode was started for; of a virtual node in Flower's simulation, its part of the run."""
    settings = context.node_config
    if "device" in settings:
        device, key = Path(str(settings["device"])), Path(str(settings["key"]))
    else:
        folder, name = Path(str(context.run_config["folder"])), f"device-{settings['partition-id']}"
        device, key = folder / "devices" / name, folder / "secrets" / name
    return DeviceFolder.open(device, Key.file(key))
