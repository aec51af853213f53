"""Further pairs of inference: prefill, decode, caches, graphs, and services that answer one request at a time."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from case import DEVICE, Step, captured, images, inference, layout, normal, pair, size, tokens
from parts import Layer, decoder
from torch import nn
from zoo import BF16, transformer


@pair
def bags_by_index_add(sick: bool) -> Step:
    torch.set_float32_matmul_precision("high")
    rows, width, bags, each = size(200_000, 50), size(128, 8), size(16384, 4), size(48, 3)
    table = normal(rows, width)
    hidden = size(4096, 8)
    top = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, hidden)).to(DEVICE)
    ids, owner = tokens(rows, bags * each), torch.arange(bags, device=DEVICE).repeat_interleave(each)
    offsets = torch.arange(0, bags * each, each, device=DEVICE)

    def forward() -> None:
        if sick:
            summed = torch.zeros(bags, width, device=DEVICE).index_add_(0, owner, table[ids])
        else:
            summed = F.embedding_bag(ids, table, offsets, mode="sum")
        top(summed)

    return inference(forward)


@pair
def dispatch_by_one_hot(sick: bool) -> Step:
    """Rows reach their expert's buffer by a product with a one-hot matrix."""
    rows, width, experts = size(8192, 16), size(2048, 16), 8
    room = 2 * rows // experts
    router = nn.Linear(width, experts).to(DEVICE, BF16)
    up, down = (normal(experts, *s, dtype=BF16) * 0.02 for s in ((width, 4 * width), (4 * width, width)))
    x, places = normal(rows, width, dtype=BF16), torch.arange(rows, device=DEVICE) % room

    def forward() -> None:
        slot = router(x).argmax(-1) * room + places
        if sick:
            buffers = F.one_hot(slot, experts * room).to(BF16).T @ x
        else:
            buffers = x.new_zeros(experts * room, width).index_copy_(0, slot, x)
        torch.bmm(F.relu(torch.bmm(buffers.view(experts, room, width), up)), down)

    return inference(forward)


@pair
def cache_transposed_each_token(sick: bool) -> Step:
    batch, heads, depth, at, layers = size(8, 2), size(16, 2), size(128, 16), size(1536, 8), size(4, 1)
    width = heads * depth
    qkv, out, up, down = (
        [nn.Linear(a * width, b * width).to(DEVICE, BF16) for _ in range(layers)]
        for a, b in ((1, 3), (1, 1), (1, 4), (4, 1))
    )
    cache = [normal(2, batch, at, heads, depth, dtype=BF16) for _ in range(layers)]
    x = normal(batch, 1, width, dtype=BF16)

    def token() -> None:
        h = x
        for i in range(layers):
            q, k, v = qkv[i](h).view(batch, 1, 3, heads, depth).unbind(2)
            cache[i][0, :, -1:], cache[i][1, :, -1:] = k, v
            keys, values = (one.transpose(1, 2) for one in cache[i])
            if sick:
                keys, values = keys.contiguous(), values.contiguous()
            y = F.scaled_dot_product_attention(q.transpose(1, 2), keys, values)
            h = h + out[i](y.transpose(1, 2).reshape(batch, 1, width))
            h = h + down[i](F.silu(up[i](h)))

    one = captured(inference(token))
    return lambda: [one() for _ in range(3)]


@pair
def layer_norm_of_whole_images(sick: bool) -> Step:
    batch, channels, side = 12, size(96, 4), size(192, 8)
    first, last = (
        nn.Conv2d(a, b, 3, padding=1).to(DEVICE, BF16).to(memory_format=torch.channels_last)
        for a, b in ((3, channels), (channels, channels))
    )
    x = images(batch, side, True, BF16)

    def forward() -> None:
        h = first(x)
        if sick:
            h = F.layer_norm(h.permute(0, 2, 3, 1), (side, side, channels)).permute(0, 3, 1, 2)
        else:
            var, mean = torch.var_mean(h, (1, 2, 3), correction=0, keepdim=True)
            h = (h - mean) * torch.rsqrt(var + 1e-5)
        for _ in range(3):
            h = last(h)

    return inference(forward)


@pair
def scores_collected_by_cat(sick: bool) -> Step:
    batch, vocabulary, width, new = size(32, 2), size(32000, 64), size(4096, 16), size(24, 3)
    body = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width)).to(DEVICE, BF16)
    head = nn.Linear(width, vocabulary, bias=False).to(DEVICE, BF16)
    x = normal(batch, width, dtype=BF16)
    room = torch.empty(batch, new, vocabulary, device=DEVICE)

    def generate() -> None:
        h, kept = x, room[:, :0]
        for t in range(new):
            h = h + body(h)
            scores = head(h)[:, None].float()
            if sick:
                kept = torch.cat([kept, scores], 1)
            else:
                room[:, t : t + 1] = scores

    return inference(generate)


@pair
def hf_siglip_tiles_by_two(sick: bool) -> Step:
    from transformers import SiglipVisionConfig, SiglipVisionModel

    config = SiglipVisionConfig(
        hidden_size=size(1152, 32), intermediate_size=size(4304, 64), num_hidden_layers=size(6, 1),
        num_attention_heads=size(16, 2), image_size=size(384, 32), patch_size=size(14, 16),
    )  # fmt: skip
    model = SiglipVisionModel(config).to(DEVICE, BF16).eval()
    x = images(6, size(384, 32), False, BF16)
    return inference(lambda: [model(pixel_values=tile).pooler_output for tile in x.split(2 if sick else 6)])


@pair
def graphed_requests_of_one(sick: bool) -> Step:
    rows, at = (1 if sick else 2), size(1800, 4)
    model = decoder(size(4096, 32), size(32, 4), size(8, 2), size(4, 1), rows, at + 2)
    ids = tokens(32000, rows, 1)
    token = captured(inference(lambda: model(ids, at).argmax(-1)))
    return lambda: [token() for _ in range(2 // rows)]


@pair
def drafts_verified_on_repeated_keys(sick: bool) -> Step:
    batch, groups, many, depth, length, drafted = size(6, 2), size(4, 2), 4, size(128, 16), size(2048, 16), 8
    width, layers = groups * many * depth, size(4, 1)
    q, up, down = ([nn.Linear(width, width).to(DEVICE, BF16) for _ in range(layers)] for _ in range(3))
    cache = [normal(2, batch, groups, length, depth, dtype=BF16) for _ in range(layers)]
    x = normal(batch, drafted, width, dtype=BF16)

    def forward() -> None:
        h = x
        for i in range(layers):
            asked = q[i](h).view(batch, drafted, groups, many, depth).permute(0, 2, 3, 1, 4)
            keys, values = cache[i]
            if sick:
                keys, values = (
                    one[:, :, None].expand(-1, -1, many, -1, -1).reshape(batch, groups * many, length, depth)
                    for one in (keys, values)
                )
            folded = asked.reshape(batch, *((groups * many, drafted) if sick else (groups, many * drafted)), depth)
            y = F.scaled_dot_product_attention(folded, keys, values).view(batch, groups, many, drafted, depth)
            h = h + down[i](F.silu(up[i](y.permute(0, 3, 1, 2, 4).reshape(batch, drafted, width))))

    return captured(inference(forward))


@pair
def hf_stablelm_eager_prefill(sick: bool) -> Step:
    how = "eager" if sick else "sdpa"
    model = transformer("StableLm", "Model", 4, 2048, num_key_value_heads=size(32, 2), attn_implementation=how)
    model, ids = model.to(BF16).eval(), tokens(size(32000, 64), size(2, 1), size(2048, 8))
    return inference(lambda: model(input_ids=ids, use_cache=False))


@pair
def hf_olmo2_float32(sick: bool) -> Step:
    torch.set_float32_matmul_precision("high")
    model = transformer("Olmo2", "Model", 4, 1536).to(torch.float32 if sick else BF16).eval()
    ids = tokens(size(32000, 64), size(8, 1), size(1024, 8))
    return inference(lambda: model(input_ids=ids, use_cache=False))


@pair
def whitened_in_float64(sick: bool) -> Step:
    torch.set_float32_matmul_precision("high")
    rows, width, dtype = size(65536, 16), size(1024, 8), torch.float64 if sick else torch.float32
    project = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)).to(DEVICE)
    x = normal(rows, width)

    def forward() -> None:
        features = project(x).to(dtype)
        features = features - features.mean(0)
        (features.T @ features / rows).float()

    return inference(forward)


@pair
def cache_grown_and_repeated_two(sick: bool) -> Step:
    batch, groups, many, depth, filled, layers = size(12, 2), size(8, 2), 4, size(128, 16), size(1500, 8), size(4, 1)
    width, new = groups * many * depth, 3
    q, kv, up, down = (
        [nn.Linear(a, b).to(DEVICE, BF16) for _ in range(layers)]
        for a, b in ((width, width), (width, 2 * groups * depth), (width, 3 * width), (3 * width, width))
    )
    room = [normal(2, batch, groups, filled + new, depth, dtype=BF16) for _ in range(layers)]
    x = normal(batch, 1, width, dtype=BF16)

    def generate() -> None:
        h, cache = x, [one[:, :, :, :filled] for one in room]
        for t in range(filled, filled + new):
            for i in range(layers):
                asked = q[i](h).view(batch, 1, groups * many, depth).transpose(1, 2)
                made = kv[i](h).view(batch, 1, 2, groups, depth).permute(2, 0, 3, 1, 4)
                if sick:
                    cache[i] = torch.cat([cache[i], made], 3)
                    keys, values = cache[i].repeat_interleave(many, 2)
                else:
                    room[i][:, :, :, t : t + 1] = made
                    keys, values = room[i][:, :, :, : t + 1]
                y = F.scaled_dot_product_attention(asked, keys, values, enable_gqa=not sick)
                h = h + down[i](F.silu(up[i](y.transpose(1, 2).flatten(2))))

    return inference(generate)


@pair
def prefill_mask_per_row(sick: bool) -> Step:
    """A service keeps a causal mask for each row of its batch, though no row is padded."""
    batch, heads, length, depth = size(4, 1), size(16, 2), size(3072, 16), size(128, 16)
    mask = torch.ones(batch, 1, length, length, dtype=torch.bool, device=DEVICE).tril()

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask if sick else None, is_causal=not sick)

    model = nn.Sequential(*[Layer(heads * depth, heads, attend) for _ in range(size(4, 1))]).to(DEVICE, BF16).eval()
    x = normal(batch, length, heads * depth, dtype=BF16)
    return inference(lambda: model(x))


@pair
def recurrent_decode_ungraphed(sick: bool) -> Step:
    """A linear recurrence: states are updated for each token, without a cache."""
    batch, width, layers = size(16, 2), size(2048, 16), size(8, 1)
    into, out = ([nn.Linear(a * width, b * width).to(DEVICE, BF16) for _ in range(layers)] for a, b in ((1, 3), (1, 1)))
    states, x = normal(layers, batch, width, dtype=BF16), normal(batch, width, dtype=BF16)

    def token() -> None:
        h = x
        for i in range(layers):
            a, b, gate = into[i](F.rms_norm(h, (width,))).chunk(3, -1)
            states[i].mul_(torch.sigmoid(a)).add_(b)
            h = h + out[i](states[i] * F.silu(gate))

    token = inference(token)
    token = token if sick else captured(token)
    return lambda: [token() for _ in range(4)]


@pair
def image_decoder_first(sick: bool) -> Step:
    widths = (size(512, 16), size(256, 8), size(128, 8))
    parts: list[nn.Module] = [nn.Conv2d(3, widths[0], 3, padding=1)]
    for wide, less in pairwise(widths):
        parts += [nn.Conv2d(wide, wide, 3, padding=1), nn.SiLU(), nn.Upsample(scale_factor=2), nn.Conv2d(wide, less, 1)]
    model = nn.Sequential(*parts, nn.Conv2d(widths[-1], 3, 3, padding=1)).to(DEVICE, BF16).eval()
    model, x = model.to(memory_format=layout(not sick)), images(size(16, 1), size(96, 8), not sick, BF16)
    return inference(lambda: model(x))


@pair
def blocks_in_float_between(sick: bool) -> Step:
    width, rows, layers = size(2560, 32), size(12288, 8), size(6, 1)
    weights = [[normal(*s, dtype=BF16) * 0.02 for s in ((width, 2 * width), (width, width))] for _ in range(layers)]
    x = normal(rows, width, dtype=BF16)

    def forward() -> None:
        h = x
        for up, down in weights:
            value, gate = (h @ up).chunk(2, -1)
            mixed = (value.float() * gate.float()).to(BF16) if sick else value * gate
            h = h + mixed @ down

    return inference(forward)


@pair
def pyg_sage_scatter(sick: bool) -> Step:
    from torch_geometric.nn import SAGEConv

    torch.set_float32_matmul_precision("high")
    nodes, edges, width = size(80_000, 20), size(700_000, 60), size(384, 8)
    ends = tokens(nodes, 2, edges)
    graph: torch.Tensor = ends
    if not sick:
        values = torch.ones(edges, device=DEVICE)
        graph = torch.sparse_coo_tensor(ends.flip(0), values, (nodes, nodes)).coalesce().to_sparse_csr()
    layers = nn.ModuleList(SAGEConv(width, width, aggr="sum") for _ in range(2)).to(DEVICE)
    x = normal(nodes, width)

    def forward() -> None:
        h = x
        for layer in layers:
            h = layer(h, graph).relu() * 0.01

    return inference(forward)
