"""What the collective of a root carries: parameters that the rank told of, or a shape that its size suggests."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import accumulate

from msgspec import Struct
from msgspec.structs import replace

from traceops.hangs.evidence import HangEvidence, Operation, Shards, Trained
from traceops.hangs.model import Carried, Root
from traceops.hangs.positions import Call, RankPosition

_REDUCES = ("all_reduce", "allreduce", "reduce_scatter", "_reduce_scatter_base")
_GATHERS = ("all_gather", "_all_gather_base", "all_gather_into_tensor", "allgather_base")
_C10D = "torch/distributed/distributed_c10d.py"
_WIDTHS = range(128, 16385, 64)  # hidden sizes
_MOST_NAMES = 4
_FIRST_CAP = 1 << 20  # bytes of the first bucket, which has the model's last parameters
_FEWEST = 1 << 20  # elements from which a size is telling


class Vocabulary(Struct, frozen=True):
    """The number of rows of a published model's embedding."""

    rows: int
    of: str


VOCABULARIES = (
    Vocabulary(28996, "bert-base-cased"), Vocabulary(30522, "bert-base-uncased"), Vocabulary(32000, "Llama 2, Mistral"),
    Vocabulary(32128, "T5"), Vocabulary(50257, "GPT-2"), Vocabulary(50265, "RoBERTa, BART"),
    Vocabulary(50272, "OPT"), Vocabulary(50304, "GPT-2, padded"), Vocabulary(50432, "GPT-NeoX, padded"),
    Vocabulary(51200, "Phi, CodeGen"), Vocabulary(51865, "Whisper"), Vocabulary(65024, "ChatGLM, Falcon"),
    Vocabulary(100352, "OLMo 2"), Vocabulary(128256, "Llama 3"), Vocabulary(129280, "DeepSeek V3"),
    Vocabulary(151936, "Qwen 2, Qwen 3"), Vocabulary(152064, "Qwen 2.5"), Vocabulary(250880, "BLOOM"),
    Vocabulary(256000, "Gemma"), Vocabulary(262144, "Gemma 3"),
)  # fmt: skip


def with_carried(root: Root, evidence: HangEvidence, ranks: Mapping[int, RankPosition]) -> Root:
    """The root with what its collective carries, where a rank told of it or its size suggests something."""
    call = _call_of(root, ranks)
    if call is None or call.op.is_p2p:
        return root
    models = evidence.models.get(call.rank, ())
    found = [told for model in models if (told := _of_model(model, call.op)) is not None]
    if found:
        alike = sum(told.alike for told in found) + len(found) - 1
        return replace(root, carried=replace(found[0], alike=alike))
    return root if evidence.models else replace(root, carried=_likely(call.op))


def _call_of(root: Root, ranks: Mapping[int, RankPosition]) -> Call | None:
    """A rank's own call of the operation that the root is about; one of a rank that waits, if there is one."""
    for rank in (*root.waiting, *root.ranks, *ranks):
        for call in () if rank not in ranks else (*ranks[rank].pending, *ranks[rank].calls.values()):
            same = (call.group.label, call.op.op, call.op.sequence) == (root.group, root.op, root.sequence)
            if same and call.op.sizes_in:
                return call
    return None


def _of_model(model: Shards | Trained, op: Operation) -> Carried | None:
    """What of the model has the operation's size; None for one that the program called itself."""
    if model.group not in (None, op.group) or any(frame.file.endswith(_C10D) for frame in op.frames):
        return None
    return _of_shards(model, op) if isinstance(model, Shards) else _of_bucket(model, op)


def _of_shards(model: Shards, op: Operation) -> Carried | None:
    sent, received = _elements(op.sizes_in), _elements(op.sizes_out)
    if op.op in _REDUCES and (model.elements == sent or model.shard == received):
        return Carried("gradients", sent or 0, model.names, model.count)
    if op.op in _GATHERS and (model.shard == sent or model.elements == received):
        return Carried("parameters", sent or 0, model.names, model.count)
    return None


def _of_bucket(model: Trained, op: Operation) -> Carried | None:
    """Parameters that follow each other and have the operation's size together, as DDP fills a bucket from the end.

    Where several such runs have it, they cannot be told apart: the first is named, and how many there are.
    """
    elements = _elements(op.sizes_in)
    if op.op not in _REDUCES or not elements:
        return None
    sums = [0, *accumulate(size for _, size, _ in model.parameters)]
    place = {total: index for index, total in enumerate(sums)}
    runs = [(first, place[total + elements]) for first, total in enumerate(sums) if total + elements in place]
    runs = [(first, end) for first, end in runs if _fills(model, first, end)]
    if not runs:
        return None
    first, end = runs[0]
    names = tuple(name for name, _, _ in model.parameters[first:end][:_MOST_NAMES])
    return Carried("gradients", elements, names, end - first, alike=len(runs) - 1)


def _fills(model: Trained, first: int, end: int) -> bool:
    """Whether a bucket is closed there: the cap is passed with its last parameter, the earliest in the model."""
    own = [nbytes for _, _, nbytes in model.parameters[first:end]]
    cap = min(model.cap_bytes, _FIRST_CAP) if end == len(model.parameters) else model.cap_bytes
    return sum(own[1:]) < cap and (sum(own) >= cap or first == 0)


def _likely(op: Operation) -> Carried | None:
    """A shape that the number of elements suggests: rows of a known vocabulary, and nothing that fits as well."""
    elements = _elements(op.sizes_in) or 0
    if op.op not in (*_REDUCES, *_GATHERS) or elements < _FEWEST:
        return None
    fits = [v for v in VOCABULARIES if elements % v.rows == 0 and elements // v.rows in _WIDTHS]
    if len(fits) != 1:
        return None
    rows = fits[0].rows
    return Carried("likely", elements, shape=(rows, elements // rows), model=fits[0].of)


def _elements(sizes: tuple[tuple[int, ...], ...] | None) -> int | None:
    return sum(math.prod(size) for size in sizes) if sizes else None
