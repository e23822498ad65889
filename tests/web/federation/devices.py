"""Python devices of a federation as threads of one process: `python devices.py SERVER FOLDER=KEY ...`."""

import sys
import threading
from contextlib import closing
from pathlib import Path

from federec.network.device_folder import DeviceFolder
from federec.network.keys import Key
from federec.runtimes.flower.node import Participant

if __name__ == "__main__":
    server, *pairs = sys.argv[1:]
    threads = []
    for pair in pairs:
        folder, key = map(Path, pair.split("="))
        with closing(DeviceFolder.open(folder, Key.file(key))) as opened:
            identity = opened.identity
        device = Participant(server, folder, Key.file(key), identity, b"")
        threads.append(threading.Thread(target=device.stay, daemon=True))
        threads[-1].start()
    for thread in threads:
        thread.join()
