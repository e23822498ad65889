"""A ClientApp for tests: honest, but for what the environment of its SuperNode says."""

import os
import time
from dataclasses import replace
from pathlib import Path

import torch
from flwr.app import Message
from flwr.clientapp import ClientApp

from federec.network.messages import Reply
from federec.network.parameters import Payload
from federec.runtimes.flower import client
from federec.runtimes.flower.records import packed, unpacked

app = ClientApp()
app.query()(client.answer)
app.evaluate()(client.answer)


@app.train()
def train(message, context):
    how, answered = os.environ.get("MISBEHAVE", ""), client.train(message, context)
    if how == "nan":
        reply = Reply.parse(unpacked(answered.content))
        nan = {name: value * torch.nan for name, value in reply.update.rows.items()}
        return Message(packed(replace(reply, update=Payload(reply.update.ids, nan)).pack()), reply_to=message)
    if how:  # a file: say that the round is at work, and never answer
        Path(how).touch()
        time.sleep(600)
    return answered
