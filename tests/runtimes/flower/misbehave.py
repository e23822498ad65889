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

app = ClientApp()
app.query()(client.query)
app.evaluate()(client.evaluate)


@app.train()
def train(message, context):
    how = os.environ.get("MISBEHAVE", "")
    reply = Reply.read(client.train(message, context).content)
    ids, rows = reply.update.ids, reply.update.rows
    if how == "nan":
        reply = replace(reply, update=Payload(ids, {name: value * torch.nan for name, value in rows.items()}))
    elif how == "shape":
        reply = replace(reply, update=Payload(ids, {name: value[:, :-1] for name, value in rows.items()}))
    elif how == "norm":
        reply = replace(reply, update=Payload(ids, {name: value + 1e12 for name, value in rows.items()}))
    elif how == "catalogue":
        reply = replace(reply, catalogue="7-000000000000")
    elif how:  # a file: say that the round is at work, and never answer
        Path(how).touch()
        time.sleep(600)
    return Message(reply.pack(), reply_to=message)
