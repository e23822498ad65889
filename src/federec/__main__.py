"""`python -m federec` is `federec`."""

from federec.cli.main import run

run()
