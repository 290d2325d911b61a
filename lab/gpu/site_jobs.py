"""The programs of check_sites.py: `site_jobs.py NAME [ARGUMENT]…`. Each prints JSON lines, and continues after reading a line from its standard
input. They know nothing of the client, except `stress`, which calls its parts.

What a program says about its own memory is summed from its own tensors: the bytes of their elements, without rounding.
"""

import json
import math
import os
import select
import statistics
import sys
import threading
import time

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

MIB = 1 << 20


def say(**values):
    print(json.dumps(values), flush=True)


def line_of(mark):
    """The number of the line of this file that ends with a mark."""
    with open(__file__) as source:
        return next(number for number, line in enumerate(source, 1) if line.rstrip().endswith("# " + mark))


def amount(tensors):
    """The bytes of distinct tensors on the GPU."""
    distinct = {tensor.data_ptr(): tensor for tensor in tensors if tensor is not None and tensor.is_cuda}
    return sum(tensor.numel() * tensor.element_size() for tensor in distinct.values())


def allocated():
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()


def pause(at, model, optimizer=None, **more):
    """Tells what the memory is, and waits until the parent has seen what the exporter tells."""
    states = optimizer.state.values() if optimizer is not None else ()
    say(
        pid=os.getpid(),
        at=at,
        parameters=amount(model.parameters()),
        gradients=amount(parameter.grad for parameter in model.parameters()),
        optimizer_state=amount(value for state in states for value in state.values() if torch.is_tensor(value)),
        allocated=allocated(),
        **more,
    )
    # The client asks the main thread for gradients, which answers between two steps of Python code.
    while not select.select([sys.stdin], [], [], 0.01)[0]:
        pass
    if not sys.stdin.readline():
        sys.exit(0)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class Gpt(nn.Module):
    """Like GPT-2: 12 layers of width 768 have 124 million parameters, with tied embeddings."""

    def __init__(self, layers=12, width=768, heads=12, words=50304, length=512, checkpointed=False):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight
        self.checkpointed = checkpointed

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.head(self.norm(x))


def language_loss(model, words, batch, length):
    tokens = torch.randint(words, (batch, length + 1), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def train(model, optimizer, loss_of, at):
    """Takes four steps, and pauses: "step" after one, while the gradients are there, "forward" before a backward pass, while the activations
    are."""
    for _ in range(4):
        optimizer.zero_grad(set_to_none=True)
        loss_of().backward()
        optimizer.step()
    if at == "step":
        return pause("after a step", model, optimizer)
    optimizer.zero_grad(set_to_none=True)
    before = allocated()
    loss = loss_of()
    pause("before a backward pass", model, optimizer, activations=allocated() - before - amount([loss]))
    loss.backward()
    optimizer.step()


def gpt(at, compiled=False, checkpointed=False):
    model = Gpt(checkpointed=checkpointed).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    called = torch.compile(model) if compiled else model
    train(model, optimizer, lambda: language_loss(called, 50304, 8, 512), at)


def gpt_compiled(at):
    gpt(at, compiled=True)


def gpt_checkpointed(at):
    gpt(at, checkpointed=True)


class Residual(nn.Module):
    def __init__(self, inner, outer, time_width):
        super().__init__()
        self.norm_1, self.norm_2 = nn.GroupNorm(32, inner), nn.GroupNorm(32, outer)
        self.conv_1, self.conv_2 = nn.Conv2d(inner, outer, 3, padding=1), nn.Conv2d(outer, outer, 3, padding=1)
        self.time = nn.Linear(time_width, outer)
        self.skip = nn.Conv2d(inner, outer, 1) if inner != outer else nn.Identity()

    def forward(self, x, moment):
        h = self.conv_1(functional.silu(self.norm_1(x)))
        h = h + self.time(functional.silu(moment))[:, :, None, None]
        return self.conv_2(functional.silu(self.norm_2(h))) + self.skip(x)


class Spatial(nn.Module):
    """Attention over the places of an image."""

    def __init__(self, width):
        super().__init__()
        self.norm, self.attention = nn.GroupNorm(32, width), Attention(width, 8)

    def forward(self, x):
        batch, width, height, length = x.shape
        places = self.norm(x).flatten(2).transpose(1, 2)
        return x + self.attention(places).transpose(1, 2).reshape(batch, width, height, length)


class UNet(nn.Module):
    """Like the U-Nets of diffusion models: four resolutions with the widths of Stable Diffusion's, attention in the lower two."""

    def __init__(self, widths=(320, 640, 1280, 1280)):
        super().__init__()
        time_width = 512
        self.time = nn.Sequential(nn.Linear(128, time_width), nn.SiLU(), nn.Linear(time_width, time_width))
        self.enter = nn.Conv2d(3, widths[0], 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        inner = widths[0]
        for level, width in enumerate(widths):
            attend = Spatial(width) if level >= 2 else nn.Identity()
            self.down.append(nn.ModuleList([Residual(inner, width, time_width), attend, nn.Conv2d(width, width, 3, stride=2, padding=1)]))
            inner = width
        self.middle = Residual(inner, inner, time_width)
        for level, width in reversed(list(enumerate(widths))):
            attend = Spatial(width) if level >= 2 else nn.Identity()
            self.up.append(nn.ModuleList([Residual(inner + width, width, time_width), attend]))
            inner = width
        self.leave = nn.Conv2d(inner, 3, 3, padding=1)

    def forward(self, x, moment):
        rates = torch.exp(-math.log(10000) * torch.arange(64, device=x.device) / 64)
        angles = moment[:, None] * rates
        moment = self.time(torch.cat([angles.sin(), angles.cos()], dim=1))
        h, skips = self.enter(x), []
        for residual, attend, smaller in self.down:
            h = attend(residual(h, moment))
            skips.append(h)
            h = smaller(h)
        h = self.middle(h, moment)
        for residual, attend in self.up:
            h = functional.interpolate(h, scale_factor=2.0)
            h = attend(residual(torch.cat([h, skips.pop()], dim=1), moment))
        return self.leave(functional.silu(h))


def unet(at):
    model = UNet().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    images = torch.randn(16, 3, 64, 64, device="cuda")

    def loss_of():
        noise = torch.randn_like(images)
        share = torch.rand(len(images), device="cuda")
        noisy = images * (1 - share)[:, None, None, None] + noise * share[:, None, None, None]
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return functional.mse_loss(model(noisy, share * 1000).float(), noise)

    train(model, optimizer, loss_of, at)


class Lora(nn.Module):
    """A frozen linear layer with an adapter of low rank."""

    def __init__(self, frozen, rank=16):
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, frozen.in_features, device=frozen.weight.device) / rank)
        self.b = nn.Parameter(torch.zeros(frozen.out_features, rank, device=frozen.weight.device))

    def forward(self, x):
        return self.frozen(x) + (x @ self.a.T) @ self.b.T


def lora(at):
    """A frozen model of 16 layers in bfloat16, with adapters in float32 and their optimizer state."""
    model = Gpt(layers=16, width=2048, heads=16, words=32000).to("cuda", torch.bfloat16).requires_grad_(False)
    for block in model.blocks:
        block.attention.qkv, block.attention.out = Lora(block.attention.qkv), Lora(block.attention.out)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4)
    train(model, optimizer, lambda: language_loss(model, 32000, 4, 512), at)


def generate_once(model, tokens, cache, kept):
    """One token more, with keys and values of the earlier ones, in lists."""
    place = torch.full((1,), len(cache[0]), device="cuda")
    x = model.words(tokens) + model.places(place)
    for block, entries in zip(model.blocks, cache):
        h = block.norm_1(x)
        q, k, v = block.attention.qkv(h).chunk(3, dim=-1)
        entries.append((k, v))
        keys, values = (torch.cat([entry[which] for entry in entries], dim=1) for which in (0, 1))
        heads = [part.view(part.shape[0], part.shape[1], 12, -1).transpose(1, 2) for part in (q, keys, values)]
        mixed = functional.scaled_dot_product_attention(*heads).transpose(1, 2).reshape(x.shape)
        x = x + block.attention.out(mixed)
        x = x + block.mlp(block.norm_2(x))
    logits = model.head(model.norm(x))
    kept.append(logits.float())  # logits
    return logits.argmax(dim=-1)


@torch.no_grad()
def generate():
    """Generates 64 tokens at a time, and keeps the logits of all tokens. Pauses after the first 64."""
    model = Gpt().cuda().half()
    kept = []
    while True:
        tokens, cache = torch.zeros(8, 1, dtype=torch.long, device="cuda"), [[] for _ in range(12)]
        for _ in range(64):
            tokens = generate_once(model, tokens, cache, kept)
            if len(kept) == 64:
                held = amount(tensor for entries in cache for entry in entries for tensor in entry) + amount(kept)
                pause("after 64 tokens", model, held=held, line=line_of("logits"))
            time.sleep(0.01)


def leak():
    """Trains, and keeps a part of the logits of each step."""
    model = Gpt(layers=4, width=512, heads=8).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    kept = []
    for number in range(1 << 40):
        optimizer.zero_grad(set_to_none=True)
        tokens = torch.randint(50304, (4, 257), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(tokens[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        kept.append(logits[0, :16].detach().float().clone())  # kept
        if number == 20:
            pause("after 20 steps", model, optimizer, line=line_of("kept"), bytes_per_step=amount(kept[-1:]))


def graph_leak():
    """Trains, and adds up the loss with its graph, so that the activations of all steps stay."""
    model = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _ in range(6)]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    total = 0
    for number in range(1 << 40):
        optimizer.zero_grad(set_to_none=True)
        loss = model(torch.randn(512, 1024, device="cuda")).square().mean()  # graph
        loss.backward(retain_graph=True)
        optimizer.step()
        total = total + loss
        torch.cuda.synchronize()
        time.sleep(0.05)
        if number == 20:
            pause("after 20 steps", model, optimizer, line=line_of("graph"))


def full(limit="0.1"):
    """Trains with larger and larger batches until an allocation fails; then the process dies at once."""
    torch.cuda.set_per_process_memory_fraction(float(limit))
    model = Gpt().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch = 2
    for number in range(100):
        optimizer.zero_grad(set_to_none=True)
        if number == 3:
            pause("before it grows", model, optimizer)
        try:
            language_loss(model, 50304, batch, 512).backward()
            optimizer.step()
        except torch.OutOfMemoryError as error:
            trace, inner = error.__traceback__, None
            while trace is not None:
                if os.path.basename(trace.tb_frame.f_code.co_filename) == os.path.basename(__file__):
                    inner = "%s:%d %s" % (os.path.basename(__file__), trace.tb_lineno, trace.tb_frame.f_code.co_name)
                trace = trace.tb_next
            say(failed=str(error)[:400], line=inner, allocated=torch.cuda.memory_allocated(), reserved=torch.cuda.memory_reserved())
            os._exit(1)
        if number >= 3:
            batch *= 2


def stress(seconds="20"):
    """Trains while another thread looks at the memory without a pause, with everything that a look does."""
    import vram_exporter._look as look
    import vram_exporter._roles as roles

    model = Gpt(layers=6, width=512, heads=8).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    torch.cuda.memory._record_memory_history(enabled="state", context="alloc", stacks="python")
    ended, looks = threading.Event(), []

    def watch():
        while not ended.is_set():
            begun = time.perf_counter()
            before = look.allocated(torch.cuda.memory._snapshot())
            snapshot = time.perf_counter() - begun
            held = roles.gather(0.25)
            gathered = time.perf_counter() - begun - snapshot
            after = look.allocated(torch.cuda.memory._snapshot())
            look.describe(before, after, held, {})
            looks.append((snapshot, gathered, time.perf_counter() - begun, len(after)))

    thread = threading.Thread(target=watch)
    thread.start()
    steps, end = 0, time.monotonic() + float(seconds)
    while time.monotonic() < end:
        optimizer.zero_grad(set_to_none=True)
        language_loss(model, 50304, 4, 256).backward()
        optimizer.step()
        steps += 1
    ended.set()
    thread.join()
    middle = [statistics.median(column) for column in zip(*looks)]
    say(steps=steps, looks=len(looks), snapshot_ms=middle[0] * 1e3, pass_ms=middle[1] * 1e3, look_ms=middle[2] * 1e3, blocks=middle[3])


def facts():
    """What the client assumes about PyTorch."""
    history = torch.cuda.memory._record_memory_history
    on = torch._C._cuda_isHistoryEnabled
    # Before CUDA is initialised, this PyTorch crashes when it is asked whether the history is on.
    found = {"torch": torch.__version__}
    torch.cuda._lazy_call(lambda: history(enabled="state", context="alloc", stacks="python"))
    first = torch.ones(1 << 20, device="cuda")
    found["history_after_initialisation"] = on()

    def block_of(tensor):
        snapshot = torch.cuda.memory._snapshot()
        blocks = [block for segment in snapshot["segments"] for block in segment["blocks"] if block["address"] == tensor.data_ptr()]
        return snapshot, blocks[0]

    snapshot, block = block_of(first)
    found["first_frame"] = block["frames"][0]["name"] if block["frames"] else None
    found["frames"] = len(block["frames"])
    found["traces"] = [len(trace) for trace in snapshot["device_traces"]]

    def nested():
        return torch.empty(1000, device="cuda")

    inner = nested()
    _, block = block_of(inner)
    found["innermost"] = [frame["name"] for frame in block["frames"][:2]]
    history(enabled=None)
    _, block = block_of(inner)
    found["frames_kept"] = bool(block["frames"])
    after = torch.empty(3000, device="cuda")
    _, block = block_of(after)
    found["frames_after_end"] = bool(block["frames"])
    history(enabled="state", context="alloc", stacks="python")
    _, block = block_of(inner)
    found["frames_kept_after_second_start"] = bool(block["frames"])
    found["requested"] = [block.get("requested_size"), block["size"]]
    history(enabled=None)
    # A failed allocation in a backward pass: does the thread in which it fails have Python frames?
    seen = []

    def observe(*_):
        caller = sys._getframe().f_back
        seen.append((threading.current_thread().name, None if caller is None else caller.f_code.co_name))

    torch._C._cuda_attach_out_of_memory_observer(observe)

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(_context, x):
            return x

        @staticmethod
        def backward(_context, gradient):
            return gradient + torch.empty(1 << 42, device="cuda")

    for attempt in (lambda: torch.empty(1 << 42, device="cuda"), lambda: Fails.apply(torch.ones(1, device="cuda", requires_grad=True)).backward()):
        try:
            attempt()
        except (torch.OutOfMemoryError, RuntimeError):
            pass
    found["observer"] = seen
    graph = torch.cuda.CUDAGraph()
    x = torch.ones(1 << 20, device="cuda")
    history(enabled="state", context="alloc", stacks="python")
    with torch.cuda.graph(graph):
        y = x * 2
    _, block = block_of(y)
    found["graph"] = [block["state"], bool(block["frames"])]
    history(enabled=None)
    say(**found)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
