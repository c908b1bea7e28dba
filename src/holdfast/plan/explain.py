"""A job's plan to look at: as text for a terminal, and as a picture (SVG) for a page."""

from __future__ import annotations

from html import escape

from holdfast.plan.compile import Plan, PlannedStage
from holdfast.plan.graph import Loop, Node, Output, Source, Step, Union

_BOX, _ROW, _GAP, _LEFT = 230, 56, 70, 20


def as_text(job: str, plan: Plan) -> str:
    """Levels from the sources to the sinks, each stage with what it reads, keeps and puts out."""
    sinks = [sink for sink in plan.sinks if not sink.closes]
    lines = [f"Job '{job}': {len(plan.planned)} stages on {plan.levels} levels, {len(sinks)} sinks"]
    for level in range(1, plan.levels + 1):
        lines.append(f"level {level}")
        for stage in (one for one in plan.planned if one.plan.level == level):
            keys = ", ".join(key.name for key in stage.plan.operator.keys)
            lines.append(f"  {stage.plan.name}: {stage.label} by ({keys})")
            lines += [f"    <- {_path(item.node)}{_time(stage, at)}" for at, item in enumerate(stage.inputs)]
            lines += [
                f"    -> {port or 'rows'}: {', '.join(field.simpleString() for field in schema.fields)}"
                for port, schema in stage.outputs.items()
            ]
    if plan.closing:
        lines.append("loops")
        lines += [f"  {sink.closes.name} <- {_path(sink.node)}" for sink in plan.closing if sink.closes]
    lines.append("sinks")
    lines += [f"  {sink.name} ({sink.format}, {sink.mode}) <- {_path(sink.node)}" for sink in sinks]
    return "\n".join(lines)


def _time(stage: PlannedStage, port: int) -> str:
    time = stage.inputs[port].time
    late = stage.plan.time.lateness / 1e6
    return f" [event time, {late:g} s late at most]" if time is not None else ""


def _path(node: Node) -> str:
    match node:
        case Source():
            return f"source '{node.name}'"
        case Loop():
            return f"loop '{node.name}'"
        case Output():
            return node.stage.name + (f".{node.port}" if node.port else "")
        case Step():
            return f"{_path(node.parent)} . {node.label}"
        case Union():
            return f"({_path(node.left)} + {_path(node.right)})"


def as_svg(job: str, plan: Plan) -> str:
    """Boxes from left to right: sources, a column for each level, sinks."""
    columns: list[list[tuple[str, str, str]]] = [[] for _ in range(plan.levels + 2)]
    edges: list[tuple[str, str, str]] = []

    def reach(node: Node, to: str, steps: tuple[str, ...] = ()) -> None:
        match node:
            case Source() | Loop():
                kind = "source" if isinstance(node, Source) else "loop"
                box = (f"{kind} {node.name}", node.name, "source" if kind == "source" else "loop, the epoch before")
                if box not in columns[0]:
                    columns[0].append(box)
                edges.append((box[0], to, ", ".join(reversed(steps))))
            case Output():
                edges.append(
                    (f"stage {node.stage.name}", to, ", ".join([*filter(None, [node.port]), *reversed(steps)]))
                )
            case Step():
                reach(node.parent, to, (*steps, node.label))
            case Union():
                reach(node.left, to, steps)
                reach(node.right, to, steps)

    for stage in plan.planned:
        keys = ", ".join(key.name for key in stage.plan.operator.keys)
        columns[stage.plan.level].append((f"stage {stage.plan.name}", stage.plan.name, f"{stage.label} by {keys}"))
        for item in stage.inputs:
            reach(item.node, f"stage {stage.plan.name}")
    for sink in plan.sinks:
        columns[-1].append((f"sink {sink.name}", sink.name, f"{sink.format}, {sink.mode}"))
        reach(sink.node, f"sink {sink.name}")
    return _drawn(job, columns, edges)


def _drawn(job: str, columns: list[list[tuple[str, str, str]]], edges: list[tuple[str, str, str]]) -> str:
    height = 70 + max(map(len, columns)) * (_ROW + 24)
    width = 2 * _LEFT + len(columns) * _BOX + (len(columns) - 1) * _GAP
    where, parts = {}, []
    for number, column in enumerate(columns):
        x = _LEFT + number * (_BOX + _GAP)
        top = 50 + (height - 60 - len(column) * (_ROW + 24)) / 2
        for row, (name, title, below) in enumerate(column):
            y = top + row * (_ROW + 24)
            where[name] = (x, y)
            kind = name.split(" ", 1)[0]
            parts.append(
                f'<g class="{kind}"><rect x="{x}" y="{y:.0f}" width="{_BOX}" height="{_ROW}" rx="7"/>'
                f'<text x="{x + 12}" y="{y + 23:.0f}" class="title">{escape(_short(title))}</text>'
                f'<text x="{x + 12}" y="{y + 42:.0f}">{escape(_short(below, 36))}</text></g>'
            )
    lines = []
    for start, end, label in edges:
        (x1, y1), (x2, y2) = where[start], where[end]
        x1, y1, y2 = x1 + _BOX, y1 + _ROW / 2, y2 + _ROW / 2
        bend = _GAP / 2
        lines.append(
            f'<path d="M{x1} {y1:.0f} C{x1 + bend} {y1:.0f} {x2 - bend} {y2:.0f} {x2} {y2:.0f}"/>'
            + (f'<text class="step" x="{x1 + 6}" y="{y1 - 6:.0f}">{escape(_short(label, 22))}</text>' if label else "")
        )
    style = (
        "text{font:12px sans-serif;fill:#456}.title{font-weight:600;font-size:14px;fill:#123}.step{font-size:10px}"
        "rect{fill:#eef4fb;stroke:#7a9cc6}.source rect{fill:#eef8ee;stroke:#7ab07a}"
        ".sink rect{fill:#fbf3e6;stroke:#c6a15a}path{fill:none;stroke:#99a;stroke-width:1.5}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
        f'<style>{style}</style><text class="title" x="{_LEFT}" y="28">{escape(job)}</text>'
        f"{''.join(lines)}{''.join(parts)}</svg>"
    )


def _short(text: str, most: int = 30) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
