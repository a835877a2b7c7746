"""What a benchmark of the loader says: a table, one conclusion, a picture. No torch."""

import math
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from imagenet_ddp.runs import plot_style
from imagenet_ddp.system.text import count_noun, percent

Found = Mapping[str, Any]
STAGES = ("read", "decode", "crop", "loader")
ENOUGH = 1.1  # images per second of the loader over the model's: what a little room for noise takes
SMALL = 0.1  # share of a step that may go to loading where one process does both


def text(found: Found) -> str:
    """For 80 columns."""
    rates = found["images_per_s"]
    lines = [
        f"One core: {found['num_images']} images at {found['image_size']} pixels, batch {found['batch_size']}; "
        f"medians of {found['repeats']}",
        f"{'':24}images/s  ratio" + "".join(f"{name:>8}" for name in STAGES) + "  (µs)",
    ]
    for name, words in found["words"].items():
        ratio = found["ratios"].get(name, 1.0) if name != "plain" else 1.0
        stages = "".join(f"{found['stages_us'][name][stage]:8,.0f}" for stage in STAGES) if name != "plain" else ""
        lines.append(f"{words:<24}{rates[name]['median']:8,.0f}{ratio:7.2f}{stages}")
    lines.append("read, decode, crop: of one image, by itself; loader: the rest (order, batch)")
    decoders = ", ".join(f"{name} {rate:,.0f}" for name, rate in found["decoders_images_per_s"].items())
    if decoders:
        lines += ["", *textwrap.wrap(f"Decoders, whole images/s: {decoders}", 80)]
    counts = ", ".join(f"{count}: {each['median']:,.0f}" for count, each in found["workers_images_per_s"].items())
    two = found["ratios"]["two_workers"]
    over = f" (two over one: {two:.2f})" if two else ""
    lines += textwrap.wrap(f"Files, images/s by loader processes: {counts}{over}", 80)
    device, model = found["device"], found["model"]
    copy = f"copy {device['transfer_us']:.1f} µs, " if device["kind"] != "cpu" else ""
    lines.append(f"On the device: {copy}flip and normalise {device['normalise_us']:.1f} µs per image")
    if model is not None:
        lines.append(f"Model: {model['name']} in {model['precision']}, {model['images_per_s']:,.0f} images/s")
    return "\n".join([*lines, "", *textwrap.wrap(found["conclusion"], 80, break_on_hyphens=False), ""])


def conclusion(found: Found) -> str:
    """Whether the model waits for its images, and what would help."""
    own = found["num_workers"]
    gives = found["workers_images_per_s"][str(own)]["median"]
    processes = "no loader process" if not own else count_noun(own, "loader process")
    head = f"The loader gives {gives:,.0f} images/s with {processes} ({found['why_num_workers']})"
    if found["model"] is None:
        return f"{head}; the model was not measured (benchmark.model=false)."
    takes = found["model"]["images_per_s"]
    head += f", the model takes {takes:,.0f}: "
    if own == 0:
        share = (1 / gives) / (1 / gives + 1 / takes)
        said = f"one process does both, and loading takes {percent(share, 0)} of its time. "
        if share <= SMALL:
            return f"{head}{said}The loader is not the wall; only a faster step would help."
        return f"{head}{said}The loader is {'the' if share > 0.5 else 'part of the'} wall. {_help(found, takes)}"
    if gives >= ENOUGH * takes:
        return f"{head}the loader is not the wall; only a faster step would help."
    return f"{head}the loader is the wall. {_help(found, takes)}"


def _help(found: Found, takes: float) -> str:
    """The first of: more processes, packed JPEGs, packed pixels, that gives enough; else the best there is."""
    cores = found["machine"]["num_cores"]
    room = max(cores - 1, 1)
    names = [name for name in found["words"] if name != "plain"]
    for name in names:
        rate = found["images_per_s"][name]["median"]
        count = math.ceil(ENOUGH * takes / rate)
        if count <= room:
            break
    else:
        name, rate = max(((name, found["images_per_s"][name]["median"]) for name in names), key=lambda each: each[1])
        count = room
    form = {names[0]: "", names[1]: "prepare.form=jpeg", names[2]: "prepare.form=raw"}[name]
    workers = f"data.num_workers={count}"
    how = workers if not form else f"`python -m imagenet_ddp.prepare prepare=pack {form}` and {workers}"
    own, would_give = found["num_workers"], min(count, room) * rate
    if own and would_give <= found["workers_images_per_s"][str(own)]["median"]:
        return "Nothing else that was measured here is faster."
    beside = "" if own else ", while the step computes"
    return f"This would help: {how} (about {would_give:,.0f} images/s{beside})."


def draw(found: Found, out: Path) -> None:
    """Rates of each form on one core, and of files with more loader processes."""
    figure = plot_style.new_figure(9.6, 4.6, 0.95)
    machine = found["machine"]
    plot_style.add_heading(
        figure,
        "Images per second of the loader",
        f"{found['num_images']} images, {found['image_size']} px, batch {found['batch_size']}; {machine['cpu']}, "
        f"{machine['num_cores']} cores",
    )
    forms, workers = figure.subplots(1, 2, width_ratios=[3, 2])
    names = list(found["words"])[::-1]
    rates = [found["images_per_s"][name]["median"] for name in names]
    ratios = [1.0 if name == "plain" else found["ratios"][name] for name in names]
    bars = forms.barh([found["words"][name] for name in names], rates, height=0.62,
                      color=[plot_style.SOFT if name == "plain" else plot_style.BLUE for name in names])  # fmt: skip
    forms.bar_label(bars, [f"{rate:,.0f}  (× {ratio:.1f})" for rate, ratio in zip(rates, ratios, strict=True)],
                    padding=5, fontsize=10, color=plot_style.INK)  # fmt: skip
    forms.set_xlim(0, 1.35 * max(rates))
    forms.set_title("one core", loc="left", fontsize=12, fontweight="bold", color=plot_style.INK, pad=9)
    counts = found["workers_images_per_s"]
    columns = workers.bar(
        list(counts), [each["median"] for each in counts.values()], width=0.62, color=plot_style.GREEN
    )
    workers.bar_label(columns, [f"{each['median']:,.0f}" for each in counts.values()], padding=3, fontsize=10,
                      color=plot_style.INK)  # fmt: skip
    workers.set_ylim(0, 1.15 * max(each["median"] for each in counts.values()))
    workers.set_title(
        "files, by loader processes", loc="left", fontsize=12, fontweight="bold", color=plot_style.INK, pad=9
    )
    workers.set_xlabel("data.num_workers", fontsize=10, color=plot_style.SOFT)
    for axes, hidden in ((forms, "x"), (workers, "y")):
        axes.tick_params(length=0, labelsize=10, labelcolor=plot_style.INK, pad=6)
        axes.tick_params(axis=hidden, labelbottom=False, labelleft=False)
        for side, spine in axes.spines.items():
            spine.set_visible(side == ("left" if hidden == "x" else "bottom"))
            spine.set_color("#B8BCC2")
    forms.tick_params(axis="x", labelbottom=False)
    plot_style.save(figure, out)
