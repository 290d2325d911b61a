"""What sites cost a program: `site_cost.py PROGRAM SECONDS`. It prints one JSON line a cycle, which is the time from the end of one window to
the end of the next.

Arms of a quarter of a second follow each other in random order: `off` and `off again` without the client, `sites` with its thread. A window that
is open at the end of such an arm is continued in the next one of its kind, and so is the time by which the client decides; what is
measured is the mean time of a step over whole cycles, with everything that the client does in them.

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

ARM = 0.25
TICK = 0.05
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
        self.looks, self.windows = 0, 0
        torch.cuda._lazy_call(self.sites.initialised)
        threading.Thread(target=self.loop, daemon=True).start()

    def loop(self):
        while True:
            self.gate.wait()
            with self.turn:
                if self.gate.is_set():
                    was = self.recording()
                    self.looks += bool(self.sites.tick(torch.cuda.memory_allocated()))
                    self.windows += was and not self.recording()
            time.sleep(TICK)

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


def arm(step):
    """The steps of an arm, and the seconds that they took."""
    torch.cuda.synchronize()
    begun, steps = time.monotonic(), 0
    while time.monotonic() - begun < ARM:
        step()
        steps += 1
        torch.cuda.synchronize()
    return steps, begun


def main(name, seconds):
    client = Client()
    client.run()
    step = program(name)
    while client.windows == 0:  # The first phase.
        arm(step)
    client.sites._budget = _sites.Budget(client.clock())
    client.stop()
    spent, rng = {}, random.Random(1)
    end, seen = time.monotonic() + seconds, client.windows
    while time.monotonic() < end:
        for which in rng.sample(("off", "off again", "sites"), 3):
            if which == "sites":
                client.run()
            steps, begun = arm(step)
            if which == "sites":
                client.stop()
            took = time.monotonic() - begun
            if which == "sites":
                client.suspend()
            before = spent.get(which, (0, 0.0))
            spent[which] = (before[0] + steps, before[1] + took)
        if client.windows > seen:
            seen = client.windows
            steps, took = ({which: figures[number] for which, figures in spent.items()} for number in (0, 1))
            print(json.dumps({"steps": steps, "took": took, "look": client.sites._budget.look}), flush=True)
            spent = {}


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
