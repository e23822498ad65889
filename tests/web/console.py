"""The page's modules in one node process that stays, called from Python."""

import base64
import json
import os
import subprocess
from pathlib import Path

from tests.web.node import STATIC

FEDERATION = STATIC / "federation"


class Refused(Exception):
    """What a module refused, in its words."""


class Console:
    """Runs function bodies; what one leaves in `kept`, the next one finds there."""

    def __init__(self, modules: list[str]) -> None:
        script = Path(__file__).with_suffix(".mjs")
        self.process = subprocess.Popen(
            ["node", str(script), str(STATIC), str(FEDERATION)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"MODULES": ",".join(modules)},
        )

    def __call__(self, body, **given):
        """What a body returns. Whatever is no refusal, but a defect of the module, fails the test."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps({"body": body, "given": given}, default=_plain) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline(), object_hook=_bytes)
        if "found" in answer:
            return answer["found"]
        assert answer["refusal"], answer["stack"]
        raise Refused(answer["refused"])

    def close(self):
        self.process.terminate()
        self.process.wait()


def _plain(value):
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    return value.tolist()


def _bytes(value):
    return base64.b64decode(value["bytes"]) if set(value) == {"bytes"} else value
