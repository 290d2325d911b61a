"""The program of check_tools.py: `tool_jobs.py TOOL ENDING FOLDER`. It is the training of `site_jobs.py full`, whose batch grows until an
allocation fails, with the lines that one tool needs, as the tool's own documentation has them. What the tool writes goes into the folder, and
what it prints into output.txt there. Messages to the parent are JSON lines.

ENDING is `reported` (the program catches the exception, runs the tool's lines and ends with os._exit), `exit` (it catches the exception and
ends with os._exit), `uncaught` (it does not catch it), `kill` (SIGKILL between a forward and a backward pass, before an allocation fails) or
`steps` (it takes equal steps, eight for each line that it reads).
"""

import contextlib
import json
import os
import signal
import sys
import time

import site_jobs
import torch

FRACTION = 0.1


class Plain:
    """No tool, or one that needs no line in the program."""

    def __init__(self, folder):
        self.folder = folder

    def begin(self):
        """Runs before the program allocates anything."""

    def around(self):
        """A `with` block around the training."""
        return contextlib.nullcontext()

    def failed(self, job):
        """Runs in the program's own except clause."""


class Snapshot(Plain):
    """PyTorch's memory history, with a snapshot in the except clause."""

    def begin(self):
        torch.cuda.memory._record_memory_history()

    def failed(self, job):
        torch.cuda.memory._dump_snapshot(os.path.join(self.folder, "snapshot.pickle"))


class Observer(Plain):
    """PyTorch's memory history, with a snapshot that PyTorch lets the program take before it raises the exception."""

    def begin(self):
        torch.cuda.memory._record_memory_history()
        path = os.path.join(self.folder, "snapshot.pickle")
        torch._C._cuda_attach_out_of_memory_observer(lambda *_: torch.cuda.memory._dump_snapshot(path))


class Report(Plain):
    """pytorch_memlab's reporter of tensors."""

    def failed(self, job):
        from pytorch_memlab import MemReporter

        reporter = MemReporter(job.model)
        reporter.add_optimizer(job.optimizer)
        reporter.report()


class Lines(Plain):
    """pytorch_memlab's line profiler. Its decorator returns the function itself, so that calling it later is the same. It prints when the
    interpreter ends."""

    def begin(self):
        from pytorch_memlab import profile

        self.functions = (Job.step, site_jobs.language_loss, site_jobs.Gpt.forward, site_jobs.Block.forward)
        for function in self.functions:
            profile(function)

    def failed(self, job):
        from pytorch_memlab.line_profiler.profile import global_line_profiler

        for function in self.functions:
            global_line_profiler.print_stats(function)


class Stormlog(Plain):
    """stormlog's tracker, with its flight recorder, PyTorch's history in the recorder's dump, and the samples in a file."""

    def begin(self):
        from stormlog import MemoryTracker
        from stormlog.telemetry_sink import TelemetrySinkConfig

        self.tracker = MemoryTracker(
            enable_oom_flight_recorder=True,
            oom_dump_dir=os.path.join(self.folder, "oom_dumps"),
            enable_native_cuda_history=True,
            telemetry_sink_config=TelemetrySinkConfig(root_dir=os.path.join(self.folder, "telemetry")),
        )
        self.tracker.start_tracking()

    def around(self):
        return self.tracker.capture_oom("training")


TOOLS = {"plain": Plain, "snapshot": Snapshot, "observer": Observer, "report": Report, "lines": Lines, "stormlog": Stormlog}


class Job:
    def __init__(self, ending, tell):
        self.ending, self.tell = ending, tell
        self.model = self.optimizer = None

    def step(self, batch, last=False):
        self.optimizer.zero_grad(set_to_none=True)
        loss = site_jobs.language_loss(self.model, 50304, batch, 512)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
        self.optimizer.step()

    def train(self):
        torch.cuda.set_per_process_memory_fraction(FRACTION)
        self.model = site_jobs.Gpt().cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        if self.ending == "steps":
            return self.take_steps()
        batch = 2
        for number in range(100):
            if number == 3:
                self.tell(pid=os.getpid(), at="before it grows")
                sys.stdin.readline()
            self.step(batch, last=self.ending == "kill" and number == 5)
            if number >= 3:
                batch *= 2

    def take_steps(self):
        self.tell(pid=os.getpid(), at="before its steps")
        while sys.stdin.readline():
            begun = time.perf_counter()
            for _ in range(8):
                self.step(8)
            torch.cuda.synchronize()
            self.tell(seconds=time.perf_counter() - begun)


def innermost(error):
    """The innermost line of the training that was running when the exception was raised."""
    trace, line = error.__traceback__, None
    while trace is not None:
        name = os.path.basename(trace.tb_frame.f_code.co_filename)
        if name in (os.path.basename(site_jobs.__file__), os.path.basename(__file__)):
            line = f"{name}:{trace.tb_lineno} {trace.tb_frame.f_code.co_name}"
        trace = trace.tb_next
    return line


def main(tool, ending, folder):
    parent = os.fdopen(os.dup(1), "w")
    with open(os.path.join(folder, "output.txt"), "wb") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)

    def tell(**values):
        print(json.dumps(values), file=parent, flush=True)

    tool, job = TOOLS[tool](folder), Job(ending, tell)
    tool.begin()
    try:
        with tool.around():
            job.train()
    except torch.OutOfMemoryError as error:
        if ending == "uncaught":
            raise
        amounts = {"allocated": torch.cuda.memory_allocated(), "reserved": torch.cuda.memory_reserved()}
        begun = time.perf_counter()
        if ending == "reported":
            tool.failed(job)
            sys.stdout.flush()
        tell(failed=str(error), line=innermost(error), seconds=time.perf_counter() - begun, **amounts)
        os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
