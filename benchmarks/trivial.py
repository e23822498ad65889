"""A Flower app that does nothing but travel: as many bytes to each device and back as a federation's round."""

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()


@client.train()
def train(message, context):
    return Message(message.content, reply_to=message)


@server.main()
def main(grid, context):
    config, seconds = context.run_config, []
    while len(list(grid.get_node_ids())) < config["devices"]:
        time.sleep(0.25)
    content = ArrayRecord([np.zeros((config["rows"], 33), np.float32)])
    for _ in range(config["rounds"] + 1):
        began = time.perf_counter()
        messages = [Message(RecordDict({"arrays": content}), node, "train") for node in grid.get_node_ids()]
        pending = set(grid.push_messages(messages))
        while pending:
            pending -= {reply.metadata.reply_to_message_id for reply in grid.pull_messages(list(pending))}
            time.sleep(0.25)
        seconds.append(time.perf_counter() - began)
    Path(str(config["out"])).write_text(json.dumps(seconds[1:]))
