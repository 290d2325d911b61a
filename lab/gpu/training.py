"""A small transformer that really trains, and reports PyTorch's own figure for the reserved memory.

The parent measures the context between the warm-up and the training, when every kernel is
loaded and only the model's memory is reserved.
"""

import json
import time

import torch
from torch import nn

WIDTH, HEADS, LAYERS, WORDS, LENGTH, BATCH = 1024, 16, 6, 8192, 256, 16
PEAK_BATCH = 8 * BATCH


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens):
        return self.head(self.layers(self.words(tokens)))


def step(model, optimizer, batch=BATCH):
    """One training step: forward, backward, AdamW."""
    tokens = torch.randint(WORDS, (batch, LENGTH + 1), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def train(steps, say, orders):
    torch.manual_seed(1)
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for _ in range(3):
        step(model, optimizer)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    warm_up_peak = torch.cuda.max_memory_reserved()
    say(ready=True, reserved=torch.cuda.memory_reserved(), warm_up_peak=warm_up_peak)
    json.loads(orders.readline())  # the parent has measured the context

    begun = time.monotonic()
    first = last = peak_ms = None
    for number in range(steps):
        peak = number == steps * 2 // 3
        if peak:
            torch.cuda.synchronize()
            peak_begun = time.monotonic()
        last = step(model, optimizer, PEAK_BATCH if peak else BATCH)
        if peak:
            torch.cuda.synchronize()
            peak_ms = (time.monotonic() - peak_begun) * 1000
            torch.cuda.empty_cache()  # after this, the driver no longer counts the memory of the peak
        if number == 0:
            first = last.item()
    torch.cuda.synchronize()
    seconds = time.monotonic() - begun
    highest = torch.cuda.max_memory_reserved()
    torch.cuda.empty_cache()
    say(
        max_memory_reserved=highest,
        max_memory_allocated=torch.cuda.max_memory_allocated(),
        reserved=torch.cuda.memory_reserved(),
        first_loss=first,
        last_loss=last.item(),
        seconds=seconds,
        peak_step_ms=peak_ms,
    )
    orders.read()


def climb(share, seconds, say, closed):
    """Trains until `closed`, and keeps more and more tensors, like a cache of samples that fills up. The GPU is at 60 % when the training
    run is ready, at `share` less 1 % after two thirds of `seconds`, and at `share` after all of them."""
    torch.manual_seed(1)
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    kept = []

    def keep(goal):
        """Keeps tensors until `goal` of the GPU's memory is in use."""
        while True:
            free, total = torch.cuda.mem_get_info()
            if 1 - free / total >= goal:
                return
            kept.append(torch.empty(256 << 20, dtype=torch.uint8, device="cuda"))

    for _ in range(3):
        step(model, optimizer)
    keep(0.6)
    torch.cuda.synchronize()
    say(ready=True)
    begun = time.monotonic()
    knee, slow = seconds * 2 / 3, 0.01
    while not closed.is_set():
        step(model, optimizer)
        torch.cuda.synchronize()
        second = time.monotonic() - begun
        if second < knee:
            keep(0.6 + (share - slow - 0.6) * second / knee)
        else:
            keep(share - slow + slow * min(1.0, (second - knee) / (seconds - knee)))


def batch_for(share):
    """The batch size with which a training step allocates about `share` of the GPU's memory, which grows with the batch once its
    activations outweigh the optimizer."""
    torch.manual_seed(1)
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    step(model, optimizer)
    highest = []
    for batch in (PEAK_BATCH // 2, PEAK_BATCH):
        torch.cuda.reset_peak_memory_stats()
        step(model, optimizer, batch)
        highest.append(torch.cuda.max_memory_allocated())
    each = (highest[1] - highest[0]) / (PEAK_BATCH // 2)
    _, total = torch.cuda.mem_get_info()
    return int(PEAK_BATCH + (share * total - highest[1]) / each)


def limited(batch, fraction, steps, say, closed):
    """Trains with batches of one size until `closed`, and says the loss after the first `steps` steps. The allocator may take `fraction` of
    the GPU if it is not 0. Ends with status 1 if it runs out of memory."""
    if fraction:
        torch.cuda.set_per_process_memory_fraction(fraction)
    torch.manual_seed(1)
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    done = 0
    try:
        while done < steps or not closed.is_set():
            loss = step(model, optimizer, batch)
            done += 1
            if done == steps:
                say(ready=True, loss=loss.item(), **figures())
        torch.cuda.synchronize()
    except torch.cuda.OutOfMemoryError as error:
        say(out_of_memory=type(error).__name__, steps=done, said=str(error).split(". ")[0], **figures())
        raise SystemExit(1) from None
    say(steps=done, loss=loss.item(), **figures())


def figures():
    return {
        "total": torch.cuda.mem_get_info()[1],
        "reserved": torch.cuda.memory_reserved(),
        "max_memory_reserved": torch.cuda.max_memory_reserved(),
        "max_memory_allocated": torch.cuda.max_memory_allocated(),
        "retries": torch.cuda.memory_stats().get("num_alloc_retries", 0),
    }


def paces(cuda, say, orders):
    """Times steps and allocations on request, so that a parent can compare them under different conditions."""
    torch.manual_seed(1)
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

    def timed(act):
        torch.cuda.synchronize()
        begun = time.perf_counter_ns()
        act()
        torch.cuda.synchronize()
        return (time.perf_counter_ns() - begun) / 1e6

    # Enough work that the bottleneck is the GPU and not the CPU that launches the kernels, because the CPU's speed varies too much.
    batch = 4 * BATCH
    for _ in range(50):
        step(model, optimizer, batch)
    say(ready=True)
    for line in orders:
        order = json.loads(line)
        steps = [timed(lambda: step(model, optimizer, batch)) for _ in range(order["steps"])]
        # The driver's own call, without PyTorch's cache: it takes the same lock as NVML.
        allocations = [timed(lambda: cuda.free(cuda.allocate(64 << 20))) for _ in range(order["allocations"])]
        say(steps=steps, allocations=allocations)
