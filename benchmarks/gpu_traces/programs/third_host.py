"""Programs of the third set that their host holds up: by launches, by reads of the device, or by both."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from case import BOTH, CUDA, DEVICE, Case, Loop, around, by_schedule, nothing, small
from models import GPT, VOCAB, Residual, tokens
from torch import nn
from torch.nn import functional
from torch.profiler import profile, record_function, schedule


class Cached(nn.Module):
    """A decoder that gives one token more for each request, with keys and values of those before."""

    def __init__(self, layers: int, width: int, heads: int, many: int, most: int) -> None:
        super().__init__()
        self.heads, self.most = heads, most
        self.tokens = nn.Embedding(VOCAB, width)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2 * layers))
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width, bias=False) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        self.up = nn.ModuleList(nn.Linear(width, 4 * width, bias=False) for _ in range(layers))
        self.down = nn.ModuleList(nn.Linear(4 * width, width, bias=False) for _ in range(layers))
        shape = (layers, 2, many, heads, most, width // heads)
        self.register_buffer("cache", torch.zeros(shape))

    def forward(self, ids: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        many, width = x.shape
        seen = torch.arange(self.most, device=x.device)[None, None, None] <= at[:, None, None, None]
        for number in range(len(self.qkv)):
            q, k, v = self.qkv[number](self.norms[2 * number](x)).view(many, 3, self.heads, -1).unbind(1)
            keys, values = self.cache[number]
            place = at[:, None, None, None].expand(-1, self.heads, 1, k.shape[-1])
            keys.scatter_(2, place, k[:, :, None])
            values.scatter_(2, place, v[:, :, None])
            y = functional.scaled_dot_product_attention(q[:, :, None], keys, values, attn_mask=seen)
            x = x + self.out[number](y.reshape(many, width))
            x = x + self.down[number](functional.silu(self.up[number](self.norms[2 * number + 1](x))))
        return functional.linear(x, self.tokens.weight)


def serving(cured: bool, _folder: Path) -> Loop:
    """A server's loop: requests are chosen in Python, a token is drawn for each, and all are read on the host; cured:
    the step in a CUDA graph, nothing read."""
    many, most = small(32, 2), small(512, 16)
    model = Cached(small(16, 1), small(1024, 16), small(16, 2), many, most).to(DEVICE, torch.bfloat16).eval()
    ids = torch.randint(0, VOCAB, (many,), device=DEVICE)
    at = torch.zeros(many, dtype=torch.long, device=DEVICE)

    def one() -> torch.Tensor:
        chance = (model(ids, at).float() / 0.8).softmax(-1)
        drawn = (chance / torch.empty_like(chance).exponential_()).argmax(-1)
        ids.copy_(drawn)
        at.add_(1).remainder_(most)
        return drawn

    replay: Callable[[], object] = one
    if cured and CUDA:
        with torch.inference_mode():
            aside = torch.cuda.Stream()
            with torch.cuda.stream(aside):
                one()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                one()
        replay = graph.replay
    texts: list[list[int]] = [[] for _ in range(many)]

    def loop(steps: int, after: Callable[[], None]) -> None:
        with torch.inference_mode():
            for _ in range(steps):
                if cured:
                    replay()
                else:
                    with record_function("schedule"):
                        waiting = sorted(range(many), key=lambda row: (len(texts[row]) % 97, row))
                        blocks = {row: [len(texts[row]) // 16 + n for n in range(32)] for row in waiting}
                        table = torch.tensor([blocks[row] for row in range(many)]).to(DEVICE)
                    with record_function("execute_model"):
                        drawn = one()
                    with record_function("output"):
                        for row, word in enumerate(drawn.tolist()):
                            texts[row].append(word)
                    del table
                after()

    return loop


def decode_window(loop: Loop, folder: Path) -> None:
    """start() and stop() around some steps of a server, as by a request to it."""
    prof = profile(activities=BOTH)
    loop(4, nothing)
    prof.start()
    loop(small(24, 6), nothing)
    prof.stop()
    prof.export_chrome_trace(str(folder / "decode.json.gz"))


def four_models(cured: bool, _folder: Path) -> Loop:
    """PPO of texts: a policy writes 24 tokens one by one, three other models judge them, and two updates follow. Each
    text's reward, and the divergence of each update, are read; cured: none is read."""
    policy, reference, judge, value = (GPT(n, w, 8).to(DEVICE) for n, w in ((6, 512), (6, 512), (4, 512), (4, 512)))
    optimizer = torch.optim.AdamW([*policy.parameters(), *value.parameters()], lr=1e-5)
    many, new = small(32, 2), small(24, 3)
    prompts = tokens(32, 32)

    def hidden(model: GPT, ids: torch.Tensor) -> torch.Tensor:
        x = model.tokens(ids) + model.places(torch.arange(ids.shape[1], device=DEVICE))
        for block in model.blocks:
            x = block(x)
        return model.norm(x)

    def chances(model: GPT, ids: torch.Tensor) -> torch.Tensor:
        told = model.head(hidden(model, ids))[:, -new - 1 : -1].float().log_softmax(-1)
        return told.gather(-1, ids[:, -new:, None])[..., 0]

    def loop(steps: int, after: Callable[[], None]) -> None:
        for _ in range(steps):
            with torch.no_grad(), torch.autocast(DEVICE.type, torch.bfloat16):
                ids = prompts
                for _ in range(new):
                    drawn = policy.head(hidden(policy, ids)[:, -1]).float().softmax(-1).multinomial(1)
                    ids = torch.cat([ids, drawn], 1)
                before, kept = chances(policy, ids), chances(reference, ids)
                reward = hidden(judge, ids)[:, -1].mean(-1)
            if not cured:
                kept_best = [reward[row].item() for row in range(many)]
                sorted(kept_best)
            for _ in range(2):
                with torch.autocast(DEVICE.type, torch.bfloat16):
                    now = chances(policy, ids)
                    worth = hidden(value, ids)[:, -1].mean(-1)
                ratio = (now - before).exp()
                gain = (reward - worth).detach()[:, None]
                loss = -(ratio * gain).mean() + (worth - reward).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                if not cured and (now - kept).mean().item() > 1e6:
                    break
            after()

    return loop


def trees(cured: bool, _folder: Path) -> Loop:
    """Sentences as trees, each by recursion in Python, whose loss is read; cured: all trees, of one shape, at once."""
    width, many, leaves = small(512, 16), small(16, 2), small(12, 3)
    joins, last = nn.Linear(2 * width, 2 * width).to(DEVICE), nn.Linear(width, 5).to(DEVICE)
    words = nn.Embedding(1000, width).to(DEVICE)
    optimizer = torch.optim.Adagrad([*joins.parameters(), *last.parameters(), *words.parameters()], lr=1e-3)
    ids = torch.randint(0, 1000, (many, leaves), device=DEVICE)
    y = torch.randint(0, 5, (many,), device=DEVICE)

    def joined(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        gate, seen = joins(torch.cat([a, b], -1)).chunk(2, -1)
        return gate.sigmoid() * seen.tanh() + a

    def folded(nodes: list[torch.Tensor]) -> torch.Tensor:
        if len(nodes) == 1:
            return nodes[0]
        middle = len(nodes) // 2
        return joined(folded(nodes[:middle]), folded(nodes[middle:]))

    def loop(steps: int, after: Callable[[], None]) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            if cured:
                top = folded(list(words(ids).unbind(1)))
                functional.cross_entropy(last(top), y).backward()
            else:
                total = 0.0
                for row, of in zip(ids, y, strict=True):
                    loss = functional.cross_entropy(last(folded(list(words(row)))), of)
                    (loss / many).backward()
                    total += float(loss)
            optimizer.step()
            after()

    return loop


class Detector(nn.Module):
    """Convolutions to a grid of boxes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, width, 6, 4, 1), nn.BatchNorm2d(width), nn.SiLU())
        self.body = nn.Sequential(*(Residual(width) for _ in range(small(6, 1))))
        self.last = nn.Sequential(nn.Conv2d(width, width, 3, 4, 1), nn.SiLU(), nn.Conv2d(width, 15, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.body(self.first(x))).flatten(2).transpose(1, 2)


def detector(cured: bool, _folder: Path) -> Loop:
    """A detector in fp16: the cells of each picture are found by boolean masks, one picture after the other, and the
    running mean of weights is made tensor by tensor; a bar shows losses and memory. cured: all cells weighed at once,
    torch._foreach_lerp_, no bar."""
    from tqdm import tqdm

    model = Detector(small(192, 8)).to(DEVICE).to(memory_format=torch.channels_last)
    mean = [part.detach().clone() for part in model.state_dict().values()]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.937, nesterov=True)
    scaler = torch.amp.GradScaler(DEVICE.type, enabled=CUDA)
    many, side = small(32, 2), small(320, 32)
    x = torch.rand(many, 3, side, side, device=DEVICE).to(memory_format=torch.channels_last)
    with torch.no_grad():
        cells = model(x).shape[1]
    near = torch.rand(many, cells, device=DEVICE)
    kinds = torch.randint(0, 10, (many, cells), device=DEVICE)

    def one_by_one(told: torch.Tensor) -> torch.Tensor:
        total = told.new_zeros(())
        for row in range(many):
            mask = near[row] > 0.9
            if mask.any():
                boxes, kind = told[row][mask], kinds[row][mask]
                total = total + functional.cross_entropy(boxes[:, 5:], kind) + boxes[:, :4].abs().mean()
            total = total + functional.binary_cross_entropy_with_logits(told[row][:, 4], mask.float())
        return total / many

    def at_once(told: torch.Tensor) -> torch.Tensor:
        mask = (near > 0.9).float()
        each = functional.cross_entropy(told[..., 5:].transpose(1, 2), kinds, reduction="none")
        boxes = told[..., :4].abs().mean(-1)
        return ((each + boxes) * mask).sum() / mask.sum() + functional.binary_cross_entropy_with_logits(
            told[..., 4], mask
        )

    def loop(steps: int, after: Callable[[], None]) -> None:
        bar = tqdm(range(steps), mininterval=1e9)
        for _ in bar:
            with torch.autocast(DEVICE.type, torch.float16 if CUDA else torch.bfloat16):
                told = model(x)
            loss = (at_once if cured else one_by_one)(told.float())
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            with torch.no_grad():
                parts = list(model.state_dict().values())
                if cured:
                    floats = [(a, b) for a, b in zip(mean, parts, strict=True) if a.is_floating_point()]
                    torch._foreach_lerp_([a for a, _ in floats], [b for _, b in floats], 1e-3)
                else:
                    for a, b in zip(mean, parts, strict=True):
                        if a.is_floating_point():
                            a.mul_(0.999).add_(b.detach(), alpha=1e-3)
            if not cured:
                held = torch.cuda.memory_reserved() / 1e9 if CUDA else 0.0
                bar.set_description(f"{held:.3g}G {loss.item():.4g}")
            after()

    return loop


def ready_files(loop: Loop, folder: Path) -> None:
    """A schedule that skips, and an on_trace_ready that prints a table first, as in many repositories."""

    def ready(prof: profile) -> None:
        prof.key_averages().table(sort_by="cpu_time_total", row_limit=5)
        prof.export_chrome_trace(str(folder / "train_batch.pt.trace.json"))

    with profile(
        schedule=schedule(skip_first=3, wait=1, warmup=1, active=3, repeat=1), on_trace_ready=ready, with_flops=True
    ) as prof:  # fmt: skip
        loop(9, prof.step)


def layer_timers(cured: bool, _folder: Path) -> Loop:
    """A GPT whose layers are timed by hooks that call synchronize() before and behind each."""
    model = GPT(16, 768, 12).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = tokens(8)
    took: list[float] = []

    def now(*_: object) -> None:
        if CUDA:
            torch.cuda.synchronize()
        took.append(time.perf_counter())

    if not cured:
        for block in model.blocks:
            for part in (block.qkv, block.out, block.mlp):
                part.register_forward_pre_hook(now)
                part.register_forward_hook(now)
                part.register_full_backward_hook(now)

    def loop(steps: int, after: Callable[[], None]) -> None:
        for _ in range(steps):
            took.clear()
            with torch.autocast(DEVICE.type, torch.bfloat16):
                loss = model(ids)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            sum(b - a for a, b in itertools.pairwise(took))
            after()

    return loop


def policy(cured: bool, _folder: Path) -> Loop:
    """A compiled policy in CUDA graphs: 16 moves of a world in numpy, each action read, then one update; cured: the
    moves are made on the device beforehand."""
    width = small(512, 16)
    net = nn.Sequential(
        nn.Linear(64, width), nn.Tanh(), *(m for _ in range(4) for m in (nn.Linear(width, width), nn.Tanh())),
        nn.Linear(width, 8),
    ).to(DEVICE)  # fmt: skip
    fast = torch.compile(net, dynamic=False, **({"mode": "reduce-overhead"} if CUDA else {"backend": "eager"}))
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-4)
    many = small(64, 4)
    state = np.zeros((many, 64), np.float32)
    drawn = np.random.default_rng(0)
    mix = drawn.standard_normal((8, 64)).astype(np.float32)
    kept = torch.randn(16 * many, 64, device=DEVICE)

    def world(actions: np.ndarray) -> None:
        for row in range(many):
            state[row] = 0.9 * state[row] + mix[actions[row]] + drawn.standard_normal(64)

    def loop(steps: int, after: Callable[[], None]) -> None:
        for _ in range(steps):
            if cured:
                x = kept
            else:
                seen = []
                for _ in range(16):
                    at = torch.from_numpy(state.copy()).to(DEVICE)
                    with torch.no_grad():
                        torch.compiler.cudagraph_mark_step_begin()
                        actions = fast(at).argmax(-1).cpu().numpy()
                    world(actions)
                    seen.append(at)
                x = torch.cat(seen)
            torch.compiler.cudagraph_mark_step_begin()
            loss = fast(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            after()

    return loop


CASES = (
    Case("decode_server", serving, decode_window, cure=True, ahead="cured"),
    Case("ppo_four_models", four_models, by_schedule(1, 1, 2), cure=True, steps=6, warm=2),
    Case("tree_recursion", trees, around(3, "trace.json"), cure=True, ahead="cured", steps=8, warm=3),
    Case("detector_masks", detector, ready_files, cure=True, ahead="cured"),
    Case("layer_timers", layer_timers, around(4, "timed.json", record_shapes=True), cure=True, ahead="cured"),
)
COMPILED = (Case("policy_in_graphs", policy, by_schedule(2, 1, 4), cure=True, steps=8, warm=4),)
