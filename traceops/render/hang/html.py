"""hang.html, one self-contained page of a diagnosis without scripts, and its blocks in a report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from traceops.core.findings import Check, Finding
from traceops.core.rank_text import is_cut, ranks_text, who_first, who_runs
from traceops.hangs.evidence import RankStacks
from traceops.hangs.model import Diagnosis
from traceops.hangs.words import WAIT_REASONS
from traceops.render.cells import Cell, word
from traceops.render.document import (
    SURE,
    Answer,
    Block,
    Document,
    Drawing,
    Facts,
    Heading,
    Headline,
    Section,
    Span,
    TableBlock,
    bold,
    code,
    fold,
    items,
    soft,
    spans,
    text,
)
from traceops.render.finding_blocks import checks_block, findings_section, not_used
from traceops.render.hang.tables import MOST_ROWS, WORDS, ranks_table, say, waits_table
from traceops.render.writers.html import write_html
from traceops.report import hang_text
from traceops.report.hang_text import RankGroup, merged_ranks, seen_lines, shown_waits, what_would_decide

MOST_NODES = 14
_LIKED_NODES = 10  # with more, ranks that are nearly alike share a box
WIDTH, GAP_X, GAP_Y, MARGIN = 272, 76, 22, 10
LINE, PADDING = 18, 11
_WIDEST, _USUAL, _NARROW = 9.6, 7.9, 5.0  # px of a character at 13 px in a wide typeface
_LANE = 14  # between arrows beside a column of boxes
_MOST_LANES = 6

Kind = Literal["root", "waiting", "other"]


class RankBox(Struct, frozen=True):
    """A box: equal ranks, with the lines it shows and the whole text for who hovers over it."""

    ranks: tuple[int, ...]
    kind: Kind
    lines: tuple[str, ...]
    title: str
    layer: int = 0  # 0 for causes, 1 for who waits for them, …
    x: float = 0.0
    y: float = 0.0

    @property
    def height(self) -> int:
        return 2 * PADDING + LINE * len(self.lines) - 4


class Edge(Struct, frozen=True):
    """An arrow from who waits to whom it waits for; `path` as SVG has it, `back` against the layers' order."""

    start: int
    end: int
    title: str
    back: bool = False
    path: str = ""


class WaitGraph(Struct, frozen=True):
    """A drawing of `width` by `height` px."""

    nodes: tuple[RankBox, ...]
    edges: tuple[Edge, ...]
    width: float
    height: float
    label: str


def wait_graphs(diagnosis: Diagnosis) -> tuple[WaitGraph, WaitGraph] | None:
    """The same graph for wide and for narrow screens; None where nobody waits for anybody."""
    nodes, edges = _nodes_and_edges(diagnosis)
    if not edges:
        return None
    nodes = _layered(nodes, edges)
    label = say("graph", boxes=len(nodes), arrows=len(edges))
    # Columns: causes at the right, boxes of a column near what they wait for
    last = max(node.layer for node in nodes)
    lanes = 2 if any(nodes[edge.start].layer < nodes[edge.end].layer for edge in edges) else 0
    top = MARGIN + lanes * _LANE
    columns: dict[int, list[int]] = defaultdict(list)
    for number, node in enumerate(nodes):
        columns[node.layer].append(number)
    tallest = max(_column_height(nodes, column) for column in columns.values())
    placed = list(nodes)
    for layer in sorted(columns):
        column = _by_targets(columns[layer], placed, edges) if layer else columns[layer]
        y = top + (tallest - _column_height(nodes, column)) / 2
        for number in column:
            placed[number] = replace(nodes[number], x=MARGIN + (last - layer) * (WIDTH + GAP_X), y=y)
            y += nodes[number].height + GAP_Y
    drawn = [_wide_edge(edge, placed, top) for edge in edges]
    beside = any(placed[edge.start].layer == placed[edge.end].layer == 0 for edge in edges)
    width = 2 * MARGIN + (last + 1) * WIDTH + last * GAP_X + (GAP_X // 2 if beside else 0)
    return WaitGraph(tuple(placed), tuple(drawn), width, top + tallest + MARGIN, label), _tall(nodes, edges, label)


def _nodes_and_edges(diagnosis: Diagnosis) -> tuple[list[RankBox], list[Edge]]:
    groups = merged_ranks(diagnosis, _LIKED_NODES)[:MOST_NODES]
    node_of = {rank: number for number, group in enumerate(groups) for rank in group.ranks}
    reasons: dict[tuple[int, int], dict[str, None]] = defaultdict(dict)
    for wait in shown_waits(diagnosis):
        ends = node_of.get(wait.rank), node_of.get(wait.on)
        if ends[0] is not None and ends[1] is not None and ends[0] != ends[1]:
            reasons[ends[0], ends[1]][WAIT_REASONS[wait.reason]] = None
    # Without boxes that no arrow touches, unless they are a cause
    touched = {number for ends in reasons for number in ends}
    kept = [number for number, group in enumerate(groups) if number in touched or group.root is not None]
    new = {old: number for number, old in enumerate(kept)}
    edges = [
        Edge(new[start], new[end], f"{_who(groups[start])} → {_who(groups[end])}: {'; '.join(list(why)[:3])}")
        for (start, end), why in sorted(reasons.items())
    ]
    waits = {start for start, _ in reasons}
    return [_node(groups[number], number in waits) for number in kept], edges


def _node(group: RankGroup, waits: bool) -> RankBox:
    state = hang_text.state_text(group)
    kind: Kind = "root" if group.root is not None else "waiting" if waits else "other"
    call = hang_text.operation_text(group.shared("op"), group.shared("sequence"))
    if "op" in group.differ:
        call = f"{len(group.values('op'))} operations"
    in_group = group.shared("group") or ""
    if call and "group" in group.differ:
        in_group = f"in {len(group.values('group'))} groups"
    call = " · ".join(text for text in (call, hang_text.bytes_text(group)) if text)
    shown = [text for text in (_who(group), state, call, in_group, hang_text.place_text(group)) if text]
    full = "\n".join(shown)
    if kind == "waiting" and len(shown) > 2:
        shown.remove(state)  # the arrow says it
    return RankBox(group.ranks, kind, tuple(_cut(text) for text in shown), full)


def _who(group: RankGroup) -> str:
    count, text = len(group.ranks), ranks_text(group.ranks, 2)
    if count == 1:
        return f"Rank {text}"
    return f"Ranks {text}" if is_cut(group.ranks, 2) else f"Ranks {text} ({count})"


def _cut(text: str) -> str:
    """As much of a line as a box is wide, by what characters take in a wide typeface."""
    left = WIDTH - 2 * 12 - _WIDEST
    for at, char in enumerate(text):
        left -= _WIDEST if char.isupper() or not char.isascii() else 8.4 if char not in ".,:;|ijl()[] '" else 5.2
        if left < 0 and at + 1 < len(text):
            return f"{text[:at]}…"
    return text


def _layered(nodes: Sequence[RankBox], edges: Sequence[Edge]) -> list[RankBox]:
    """Each box outside everything it waits for, causes innermost; waiting in a circle pushes nobody outwards."""
    after: dict[int, set[int]] = {number: set() for number in range(len(nodes))}
    for edge in edges:
        after[edge.start].add(edge.end)
    reached: dict[int, set[int]] = defaultdict(set)  # boxes that arrows lead to; itself only through a circle
    for number in after:
        queue = [number]
        while queue:
            onward_ends = after[queue.pop()] - reached[number]
            reached[number] |= onward_ends
            queue += onward_ends
    layers: dict[int, int] = {}

    def layer(number: int) -> int:
        if number not in layers:
            onward = [layer(end) for end in after[number] if number not in reached[end]]
            circle = any(number in reached[end] for end in after[number])
            is_root = nodes[number].kind == "root"
            layers[number] = 0 if is_root else max([*(at + 1 for at in onward), int(circle)], default=0)
        return layers[number]

    return [replace(node, layer=layer(number)) for number, node in enumerate(nodes)]


def _column_height(nodes: Sequence[RankBox], column: Sequence[int]) -> float:
    return sum(nodes[number].height for number in column) + GAP_Y * (len(column) - 1)


def _by_targets(column: list[int], placed: Sequence[RankBox], edges: Sequence[Edge]) -> list[int]:
    """Boxes in the order of the mean height of what they wait for in the column before, so that arrows cross little."""
    mean: dict[int, float] = {}
    for number in column:
        ends = [
            placed[edge.end].y
            for edge in edges
            if edge.start == number and placed[edge.end].layer < placed[number].layer
        ]
        mean[number] = sum(ends) / len(ends) if ends else 0.0
    return sorted(column, key=lambda number: (mean[number], placed[number].ranks[0]))


def _wide_edge(edge: Edge, nodes: Sequence[RankBox], top: float) -> Edge:
    start, end = nodes[edge.start], nodes[edge.end]
    y1, y2 = start.y + start.height / 2, end.y + end.height / 2
    if start.layer > end.layer:
        x1, x2 = start.x + WIDTH, end.x - 6
        turned = x1 + GAP_X - 6  # at the target's height before the next column begins
        half = (x1 + turned) / 2
        return replace(edge, path=f"M{x1:g},{y1:g} C{half:g},{y1:g} {half:g},{y2:g} {turned:g},{y2:g} H{x2:g}")
    if start.layer == end.layer:
        x, bend = start.x + WIDTH, GAP_X * 0.55
        y1, y2 = (y1 + 6, y2 - 6) if y1 < y2 else (y1 - 6, y2 + 6)
        path = f"M{x:g},{y1:g} C{x + bend:g},{y1:g} {x + bend:g},{y2:g} {x + 6:g},{y2:g}"
        return replace(edge, back=True, path=path)
    x1, x2 = start.x + WIDTH / 2, end.x + WIDTH / 2
    rise = min(start.y, end.y, top + GAP_Y) - _LANE * 1.6
    path = f"M{x1:g},{start.y:g} C{x1:g},{rise:g} {x2:g},{rise:g} {x2:g},{end.y - 6:g}"
    return replace(edge, back=True, path=path)


def _tall(nodes: Sequence[RankBox], edges: Sequence[Edge], label: str) -> WaitGraph:
    """One column, causes at the end; arrows run in lanes at the left, short ones inside."""
    order = sorted(range(len(nodes)), key=lambda number: (-nodes[number].layer, number))
    row = {number: at for at, number in enumerate(order)}
    lane: dict[int, int] = {}
    by_length = sorted(range(len(edges)), key=lambda at: abs(row[edges[at].start] - row[edges[at].end]))
    ends: Mapping[int, int] = {end: at for at, end in enumerate(dict.fromkeys(edges[at].end for at in by_length))}
    for at in by_length:  # arrows to the same box share a lane
        lane[at] = min(ends[edges[at].end], _MOST_LANES - 1)
    left = MARGIN + _LANE * (max(lane.values(), default=0) + 2)
    placed, y = list(nodes), float(MARGIN)
    for number in order:
        placed[number] = replace(nodes[number], x=left, y=y)
        y += nodes[number].height + GAP_Y
    drawn = []
    for at, edge in enumerate(edges):
        start, end = placed[edge.start], placed[edge.end]
        x = left - _LANE * (lane[at] + 1.4)
        y1, y2 = start.y + start.height / 2, end.y + end.height / 2
        y1 += 5 if row[edge.start] < row[edge.end] else -5
        y2 += -5 if row[edge.start] < row[edge.end] else 5
        path = f"M{left:g},{y1:g} H{x:g} V{y2:g} H{left - 6:g}"
        drawn.append(replace(edge, path=path, back=start.layer <= end.layer))
    return WaitGraph(tuple(placed), tuple(drawn), left + WIDTH + MARGIN, y - GAP_Y + MARGIN, label)


def hang_answer(diagnosis: Diagnosis, proof: str) -> Answer | None:
    """Of the first cause; None without one. proof: '#id' of the section that shows who waits for whom."""
    if not diagnosis.roots:
        return None
    root = diagnosis.roots[0]
    lines: list[tuple[str, tuple[Block, ...]]] = []
    if root.ranks:
        hosts = {status.host for status in diagnosis.ranks if status.rank in set(root.ranks) and status.host}
        on = f" on {' and '.join(sorted(hosts))}" if 1 <= len(hosts) <= 2 else ""
        lines.append(("Where", (text(f"{who_first(root.ranks)}{on}"),)))
    if root.waiting:
        lines.append(("Waiting", (text(who_first(root.waiting)),)))
    if advice := hang_text.root_advice(root):
        lines.append(("Do", (text(advice),)))
    lines.append(("Confidence", (text(f"{SURE[root.confidence]}. ", Span(root.rule, "soft")),)))
    lines.append(("Proof", (text(Span(WORDS["proof"], href=proof)),)))
    return Answer(tuple(lines))


_MOST_STACKS = 16
_MOST_FRAMES = 60
_MOST_FILES = 200
_BOX = {"width": WIDTH, "line": LINE, "padding": PADDING}


def hang_blocks(diagnosis: Diagnosis) -> tuple[Block, ...]:
    """All of a diagnosis under one heading, for a report that holds more than the hang."""
    stacks = stacks_blocks(diagnosis)
    opening: tuple[Block, ...] = () if diagnosis.roots else (text(hang_text.hang_sentence(diagnosis)),)
    return (
        *opening,
        *(text(bold(line)) for line in other_roots(diagnosis)),
        *waits_blocks(diagnosis),
        Heading("Ranks"),
        ranks_block(diagnosis),
        *((Heading("Stacks"), *stacks) if stacks else ()),
        Heading("What was read"),
        *sources_blocks(diagnosis),
    )


def other_roots(diagnosis: Diagnosis) -> list[str]:
    """A line for each cause after the one that the verdict tells."""
    return [
        f"{hang_text.root_sentence(root)} ({root.rule}, {root.confidence} confidence)" for root in diagnosis.roots[1:]
    ]


def waits_blocks(diagnosis: Diagnosis) -> tuple[Block, ...]:
    """The graph of who waits for whom, and the same as a table."""
    graphs = wait_graphs(diagnosis) or ()
    blocks: list[Block] = []
    if graphs:
        blocks.append(soft(WORDS["arrows"]))
    for graph, css in zip(graphs, ("wide", "tall"), strict=False):
        blocks.append(Drawing("hang_graph", (graph, css, _BOX)))
    if (table := waits_table(diagnosis)) is not None:
        return (*blocks, fold(WORDS["arrows_table"], TableBlock(table), open=not graphs))
    none = WORDS["none_missing" if diagnosis.roots else "none_waits"]
    return (*blocks, text(none, _unknown(diagnosis)))


def ranks_block(diagnosis: Diagnosis) -> TableBlock:
    """What each rank was in."""
    return TableBlock(ranks_table(diagnosis, merged_ranks(diagnosis, MOST_ROWS)))


def stacks_blocks(diagnosis: Diagnosis) -> tuple[Block, ...]:
    """Stacks of the causes' ranks, then of one rank that waits to compare with."""
    held = diagnosis.evidence.stacks
    causes = list(dict.fromkeys(rank for root in diagnosis.roots for rank in root.ranks if rank in held))
    waiting = [wait.rank for wait in diagnosis.waits if wait.rank in held and wait.rank not in causes]
    shown = [(rank, "") for rank in causes[:_MOST_STACKS]]
    shown += [(rank, WORDS["compare"]) for rank in waiting[:1]]
    folded: list[Block] = [
        fold(f"Rank {rank}{why}", *_threads(held[rank]), open=not place) for place, (rank, why) in enumerate(shown)
    ]
    more = len(causes) - _MOST_STACKS
    if more > 0:
        folded.append(soft(say("more_stacks", more=more)))
    return tuple(folded)


def sources_blocks(diagnosis: Diagnosis) -> tuple[Block, ...]:
    """What was read, what could not be used, and what the reader should know of it."""
    evidence, stall = diagnosis.evidence, hang_text.stall_text(diagnosis)
    blocks: list[Block] = [
        text(f"{stall}. " if stall else "", f"Read: {hang_text.read_text(diagnosis)}.", _unknown(diagnosis))
    ]
    seen = []
    for event, said_by in seen_lines(diagnosis):
        by = f"{who_first(said_by)}: " if said_by else ""
        seen.append(f"{hang_text.shown_path(diagnosis, event.path)}:{event.line}: {by}{event.text}")
    if seen:
        blocks += [soft(WORDS["also_in_logs"]), items(seen, "files")]
    if wanted := what_would_decide(diagnosis):
        blocks.append(text(wanted))
    if evidence.problems:
        blocks.append(not_used([(hang_text.shown_path(diagnosis, path), said) for path, said in evidence.problems]))
    if diagnosis.notes:
        blocks.append(items(diagnosis.notes, "notes"))
    if evidence.files:
        files = [code(hang_text.shown_path(diagnosis, path)) for path in evidence.files[:_MOST_FILES]]
        more = len(evidence.files) - _MOST_FILES
        rest = (soft(f"{more} more."),) if more > 0 else ()
        blocks.append(fold(f"Files read ({len(evidence.files)})", items(files, "files"), *rest))
    return tuple(blocks)


def _unknown(diagnosis: Diagnosis) -> str:
    unknown = hang_text.unknown_ranks(diagnosis)
    return f" {say('unknown', unknown=who_runs(unknown))}" if unknown else ""


def _threads(stacks: RankStacks) -> list[Block]:
    """The main thread's frames at once, those of the others folded."""
    blocks: list[Block] = []
    for thread in sorted(stacks.threads, key=lambda thread: not thread.main):
        title = "main thread" if thread.main else f"thread {thread.name or ''}".strip()
        title += f" {WORDS['compiled']}" if thread.native else ""
        frames = [str(frame) for frame in thread.frames[:_MOST_FRAMES]]
        listed = items(frames, "frames", ordered=True)
        if thread.main or len(stacks.threads) == 1:
            blocks += [Heading(title, 4), listed]
            if len(thread.frames) > _MOST_FRAMES:
                blocks.append(soft(say("more_frames", more=len(thread.frames) - _MOST_FRAMES)))
        else:
            blocks.append(fold(f"{title}: {frames[0] if frames else 'no frames'}", listed))
    return blocks


def render_hang_html(diagnosis: Diagnosis, findings: Sequence[Finding], checks: Sequence[Check]) -> bytes:
    """The page in UTF-8: no script, nothing from outside, everything that came from a file escaped."""
    return write_html(describe(diagnosis, findings, checks))


def describe(diagnosis: Diagnosis, findings: Sequence[Finding], checks: Sequence[Check]) -> Document:
    """A diagnosis with its findings as a document."""
    name, stacks = diagnosis.evidence.name, stacks_blocks(diagnosis)
    sections = [
        Section("waits", WORDS["waits"], waits_blocks(diagnosis)),
        findings_section(findings, checks),
        Section("ranks", "Ranks", (ranks_block(diagnosis),)),
        Section("stacks", "Stacks", (soft(WORDS["innermost"]), *stacks)),
        Section("read", "What was read", sources_blocks(diagnosis)),
        Section("checks", "Checks", (checks_block(checks, WORDS["rules"]),)),
    ]
    return Document(
        title=f"{name}: hang",
        heading=spans(name),
        command="traceops diagnose",
        verdict=Headline(hang_text.hang_level(diagnosis), hang_text.hang_sentence(diagnosis)),
        intro=(
            *([answer] if (answer := hang_answer(diagnosis, "#waits")) is not None else []),
            *(text(line, look="verdict level-error another") for line in other_roots(diagnosis)),
            Facts(tuple(_facts(diagnosis))),
        ),
        sections=tuple(section for section in sections if section.id != "stacks" or stacks),
        footer=WORDS["footer"],
        styles=("summary.css", "hang.css"),
    )


def _facts(diagnosis: Diagnosis) -> list[tuple[str, Cell]]:
    """The strip of facts under the verdict."""
    evidence = diagnosis.evidence
    unknown = hang_text.unknown_ranks(diagnosis)
    known = len(hang_text.known_ranks(diagnosis))
    stall = evidence.stall
    dumps = sum(record.source == "flight recorder" for record in evidence.records.values())
    versions = {record.nccl_version for record in evidence.records.values() if record.nccl_version}
    hosts = {status.host for status in diagnosis.ranks if status.host}
    waiting = {wait.rank for wait in shown_waits(diagnosis)}
    return [
        ("Ranks", word(evidence.world_size)),
        ("Evidence of", _ranks(known)),
        ("No evidence of", Cell(who_runs(unknown), css="bad") if unknown else Cell("no rank")),
        ("Waiting", _ranks(len(waiting))),
        ("Stalled for", Cell(f"{stall.stalled_s:.0f} s") if stall else word(None)),
        ("Hosts", word(len(hosts) or None)),
        ("NCCL", word(", ".join(sorted(versions)))),
        ("Flight-recorder dumps", _ranks(dumps)),
        ("Stacks", _ranks(len(evidence.stacks))),
        ("Files read", Cell(str(len(evidence.files)))),
        ("Not used", Cell(str(len(evidence.problems)), css="bad") if evidence.problems else Cell("none")),
    ]


def _ranks(count: int) -> Cell:
    return Cell(f"{count} rank{'' if count == 1 else 's'}")
