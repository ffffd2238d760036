# SPDX-License-Identifier: MIT
"""What a first-time user does: start the server, run the line that it shows, stop it.

`python try_server.py make run` does so with that command; it fails if the line does not answer, or
if anything is left running.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import IO

SHOWN = "try: "


def main(command: list[str]) -> None:
    """Run the command, and try what it tells to try."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stderr is not None
    try:
        line = shown_line(process.stderr)
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
        (choice,) = json.loads(done.stdout)["choices"]
        sys.stdout.write(f"answered: {choice['message']['content']}\n")
    finally:
        os.killpg(process.pid, signal.SIGTERM)
    # Every process of the server holds this pipe; it ends with the last of them.
    sys.stdout.write(process.stderr.read())
    process.wait()


def shown_line(lines: IO[str]) -> str:
    """The line to try, out of what the server writes."""
    for line in lines:
        sys.stdout.write(line)
        if line.startswith(SHOWN):
            return line.removeprefix(SHOWN)
    raise AssertionError("the server ended before it showed a line to try")


if __name__ == "__main__":
    main(sys.argv[1:])
