"""A node for tests, in a process of its own: `python -m tests.runtimes.flower.rogue HOW` and then as `join` is given.

HOW is `nan`, for updates of NaN, or a file: it is made when training is ordered, and no answer is given.
"""

import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from federec.network import device
from federec.network.messages import Order, Reply
from federec.network.parameters import Payload
from federec.runtimes.flower.node import join


def misbehaving(how, answer):
    def answered(opened, content, sums):
        if Order.parse(content).kind != "train":
            return answer(opened, content, sums)
        if how != "nan":
            Path(how).touch()
            time.sleep(600)
        reply = Reply.parse(answer(opened, content, sums))
        nan = {name: value * np.nan for name, value in reply.update.rows.items()}
        return replace(reply, update=Payload(reply.update.ids, nan)).pack()

    return answered


if __name__ == "__main__":
    device.answer = misbehaving(sys.argv[1], device.answer)
    server, folder, key, root = sys.argv[2:]
    join(server, Path(folder), Path(key), Path(root))
