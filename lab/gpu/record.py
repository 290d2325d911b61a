#!/usr/bin/env python3
"""Records what NVML returns on a real GPU: return code, sample value and latency of each call.

    record.py OUT.json [--busy N | --context N] [--nvml PATH]

It changes no GPU setting. The calls run in a worker process; if a call
crashes or hangs, only its own result is lost, and the JSON is written in any case. Serial numbers,
UUIDs and bus addresses are replaced by placeholders. README.md describes the format.
"""

import argparse
import datetime
import json
import os
import platform
import select
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/judges"))

from children import ChildFailed, Crowd

SILENCE_LIMIT_S = 30


class Worker:
    """The process that calls NVML. It reports the name of each call before making the call."""

    def __init__(self, options, pids, skip):
        self.process = subprocess.Popen(
            [
                sys.executable,
                os.path.join(os.path.dirname(os.path.abspath(__file__)), "record_calls.py"),
                json.dumps({"nvml": options.nvml, "pids": pids, "skip": sorted(skip)}),
            ],
            stdout=subprocess.PIPE,
        )
        self.buffer = b""

    def messages(self):
        """Each message until the worker ends. Raises TimeoutError if the worker hangs."""
        stdout = self.process.stdout.fileno()
        while True:
            if not select.select([stdout], [], [], SILENCE_LIMIT_S)[0]:
                raise TimeoutError
            piece = os.read(stdout, 1 << 20)
            if not piece:
                return
            *lines, self.buffer = (self.buffer + piece).split(b"\n")
            yield from map(json.loads, lines)

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.stdout.close()
        return self.process.wait()


def file_result(recording, message):
    """Store one result from the worker in its place in the recording."""
    name = message["name"]
    if "facts" in message:
        recording.update(message["facts"])
        return
    if "section" in message:
        recording[message["section"]] = message["value"]
        return
    recording["variants" if "/" in name else "calls"][name] = message["code"]
    if message.get("value") is not None:
        recording["values"][name] = message["value"]
    if message.get("latency_us"):
        recording["latency_us"][name] = message["latency_us"]


def record(options, pids, recording):
    """Run workers until one completes the whole list. If a call crashes or hangs a worker, later workers skip this call."""
    skip = set()
    while True:
        worker = Worker(options, pids, skip)
        begun = None
        hung = False
        try:
            for message in worker.messages():
                if "begin" in message:
                    begun = message["begin"]
                    continue
                file_result(recording, message)
                skip.add(message["name"])
                if message["name"] == begun:
                    begun = None
        except TimeoutError:
            hung = True
        status = worker.end()
        if begun is None:
            if status != 0:
                recording["problems"].append(f"the worker ended with status {status} between two calls")
            return
        word = "HANG" if hung else f"CRASH_{status}"
        recording["problems"].append(f"{begun}: {word}")
        if begun.startswith("nvml"):
            recording["variants" if "/" in begun else "calls"][begun] = word
        else:
            recording[begun] = {"problem": word}
        skip.add(begun)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", metavar="OUT.json")
    state = parser.add_mutually_exclusive_group()
    state.add_argument("--busy", type=int, default=0, metavar="N", help="start N processes that hold 1 GiB each and multiply matrices")
    state.add_argument("--context", type=int, default=0, metavar="N", help="start N processes that only hold a context")
    parser.add_argument("--nvml", metavar="PATH", help="the library, if the loader does not find it")
    options = parser.parse_args()

    count = options.busy or options.context
    recording = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "gpu": None,
        "driver": None,
        "state": "busy" if options.busy else "context" if options.context else "idle",
        "processes": count,
        "python": platform.python_version(),
        "calls": {},
        "variants": {},
        "values": {},
        "latency_us": {},
        "problems": [],
    }
    try:
        with Crowd(count, *(("busy", "--mib", 1024) if options.busy else ("context",))) as children:
            if count:
                time.sleep(3)  # so that the driver's one-second averages contain only this load
            record(options, [child.pid for child in children], recording)
    except (ChildFailed, OSError) as error:
        recording["problems"].append(str(error))
    finally:
        with open(options.out, "w") as out:
            json.dump(recording, out, indent=1)
            out.write("\n")
    print(f"{options.out}: {len(recording['calls'])} calls, {len(recording['variants'])} variants")
    for problem in recording["problems"]:
        print("problem:", problem)
    sys.exit(1 if recording["problems"] else 0)


if __name__ == "__main__":
    main()
