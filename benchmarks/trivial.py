"""A Flower app that only passes messages: as many bytes to each device and back as a federation's round, other bytes
for each device and round, since Flower sends equal bytes only once."""

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()


def content(rows: np.ndarray) -> RecordDict:
    return RecordDict({"arrays": ArrayRecord([rows])})


@client.train()
def train(message, context):
    rows = message.content.array_records["arrays"].to_numpy_ndarrays()[0]
    return Message(content(rows + 1), reply_to=message)


@server.main()
def main(grid, context):
    config, random = context.run_config, np.random.default_rng()
    while len(nodes := list(grid.get_node_ids())) < config["devices"]:
        time.sleep(0.25)
    for _ in range(config["rounds"]):
        rows = random.random((len(nodes), config["rows"], 33), np.float32)
        messages = [Message(content(own), node, "train") for own, node in zip(rows, nodes, strict=True)]
        pending = set(grid.push_messages(messages))
        while pending:
            pending -= {reply.metadata.reply_to_message_id for reply in grid.pull_messages(list(pending))}
            if pending:
                time.sleep(0.25)
        with Path(str(config["out"])).open("a") as out:
            out.write(json.dumps({"event": "round", "time": time.time()}) + "\n")
