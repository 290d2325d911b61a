"""What sites cost a program: `site_cost.py PROGRAM SECONDS`. It prints one JSON line a cycle, which is the time from the end of one window to
the end of the next, with the steps of each arm of its rounds, and the looks.

In a round, arms of 80 ms follow each other in random order: `off` and `off again` without the client, `sites` with its thread. A window that
is open at the end of such an arm is continued in the next one of its kind, and so is the time by which the client decides; what is
measured is the mean time of a step over whole cycles, with everything that the client does in them. Each step is also told with what the client
did meanwhile, so that recording and looks can be told apart.

Windows and the time between looks are ten times shorter than a program's, so that a cycle takes seconds. The share that they may cost is the
same.
"""

import json
import os
import random
import sys
import threading
import time

import torch
from site_jobs import Gpt, generate_once, language_loss

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "clients", "python", "src"))

from vram_exporter import _history, _sites  # noqa: E402

ARM = 0.08
# The client reads PyTorch's figures every 0.2 s. What is scaled is what depends on the length of a window.
TICK, READ = 0.05, 0.2
# What the client did during a step.
IDLE, RECORDED, LOOKED = 0, 1, 2
# Layers, width, batch; those of the first measurements.
SIZES = {"4 layers, 512 wide": (4, 512, 4), "12 layers, 1024 wide": (12, 1024, 8), "24 layers, 256 wide": (24, 256, 1)}


class Clock:
    """The time that has passed in the arm `sites`."""

    def __init__(self):
        self.before, self.since = 0.0, None

    def __call__(self):
        return self.before + (time.monotonic() - self.since if self.since is not None else 0.0)

    def run(self):
        self.since = time.monotonic()

    def stop(self):
        self.before, self.since = self(), None


class Client:
    """The client's thread, which works only while the clock runs."""

    def __init__(self):
        for name in ("WINDOW", "EVERY", "FIRST", "QUIET", "PAUSE"):
            setattr(_sites, name, getattr(_sites, name) / 10)
        self.clock, self.gate, self.turn = Clock(), threading.Event(), threading.Lock()
        self.sites = _sites.Sites(self.clock)
        self.ticks, self.windows, self.looks = False, 0, []
        """Of each look: when it began and ended, and what the client counts for it."""
        torch.cuda._lazy_call(self.sites.initialised)
        threading.Thread(target=self.loop, daemon=True).start()

    def loop(self):
        allocated, read_at = 0, 0.0
        while True:
            self.gate.wait()
            with self.turn:
                if self.gate.is_set():
                    if time.monotonic() - read_at >= READ:
                        allocated, read_at = torch.cuda.memory_allocated(), time.monotonic()
                    self.tick(allocated)
            time.sleep(TICK)

    def tick(self, allocated):
        self.ticks, was, begun = True, self.recording(), time.monotonic()
        if self.sites.tick(allocated):
            self.looks.append((begun, time.monotonic(), self.sites._budget.look))
        self.windows += was and not self.recording()
        self.ticks = False

    def recording(self):
        return self.sites._recording

    def run(self):
        if self.recording():
            _history.record()
        self.clock.run()
        self.gate.set()

    def stop(self):
        """Waits for a look that has begun."""
        self.gate.clear()
        with self.turn:
            self.clock.stop()

    def suspend(self):
        # At once, because no thread allocates here.
        if self.recording():
            _history.end()


def program(name):
    """A function that takes one step."""
    if name == "generation":
        model, state = Gpt(layers=12, width=768, heads=12).cuda().half(), {}

        @torch.no_grad()
        def step():
            if len(state.get("kept", ())) in (0, 64):
                state.update(tokens=torch.zeros(8, 1, dtype=torch.long, device="cuda"), cache=[[] for _ in range(12)], kept=[])
            state["tokens"] = generate_once(model, state["tokens"], state["cache"], state["kept"])

        return step
    layers, width, batch = SIZES[name]
    model = Gpt(layers=layers, width=width, heads=width // 64, words=8192, length=256).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step():
        optimizer.zero_grad(set_to_none=True)
        language_loss(model, 8192, batch, 256).backward()
        optimizer.step()

    return step


def arm(step, client):
    """When each step of an arm began and ended, and whether frames were recorded in it. An arm does not end during a look."""
    torch.cuda.synchronize()
    begun = now = time.monotonic()
    steps = []
    while now - begun < ARM or client.ticks:
        before, recording = now, client.gate.is_set() and client.recording()
        step()
        torch.cuda.synchronize()
        now = time.monotonic()
        steps.append((before, now, recording))
    return steps


def told(steps, looks):
    """The seconds of each step, and what the client did in it."""
    figures = []
    for begun, ended, recording in steps:
        looked = any(begun < of_look[1] and of_look[0] < ended for of_look in looks)
        figures.append((round(ended - begun, 6), LOOKED if looked else RECORDED if recording else IDLE))
    return figures


def main(name, seconds):
    client = Client()
    client.run()
    step = program(name)
    while client.windows == 0:  # The first phase.
        arm(step, client)
    client.sites._budget = _sites.Budget(client.clock())
    client.stop()
    rounds, rng = [], random.Random(1)
    client.looks.clear()
    end, seen = time.monotonic() + seconds, client.windows
    while time.monotonic() < end:
        of_round = {}
        for which in rng.sample(("off", "off again", "sites"), 3):
            if which == "sites":
                client.run()
            steps = arm(step, client)
            if which == "sites":
                client.stop()
                client.suspend()
            of_round[which] = told(steps, client.looks[-8:] if which == "sites" else ())
        rounds.append(of_round)
        if client.windows > seen:
            seen = client.windows
            print(json.dumps({"rounds": rounds, "looks": [(ended - begun, counted) for begun, ended, counted in client.looks]}), flush=True)
            rounds = []
            client.looks.clear()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
