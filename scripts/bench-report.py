"""Writes bench/report.md and its plots from bench/report.json.

Usage: bench-report.py FOLDER [--complete]

With --complete, fails if a figure is missing that does not belong to an absent peer.
"""

import json
import math
import pathlib
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

# What each figure compares, and its aim. `min`: the ratio shall be at least the aim; `max`: at most.
FIGURES = {
    "Check, sent to the sidecar directly": {
        "check_hot": ("one token ÷ a server on tonic that allows everything", "min", 0.8),
        "check_hot_vs_same_response": ("one token ÷ the same server, answering as the sidecar does", None, None),
        "check_1000": ("1,000 agents ÷ the same", "min", 0.9),
        "check_zipf_100000": ("100,000 agents, of which few send most requests (Zipf) ÷ the same", None, None),
        "check_40_headers": ("40 request headers ÷ the same", None, None),
        "check_30_roles": ("an agent with 30 roles ÷ the same", None, None),
        "check_half_forged": ("1,000 agents, every second signature forged ÷ the same", None, None),
        "check_distinct_vs_allow": ("no token repeats ÷ the same", None, None),
        "check_distinct": ("no token repeats ÷ ES256 verifications by aws-lc alone", "min", 0.8),
        "check_control": ("the sidecar ÷ itself: the noise of the machine", None, None),
    },
    "Latency of checks that arrive at fixed times (both sides in microseconds)": {
        "latency_p99_vs_allow": (
            "p99 at half of the sidecar's capacity ÷ the same of the server that allows everything", "max", 1.5,
        ),
        **{
            f"latency_{quantile}_at_{load}_vs_allow": (
                f"{quantile} at {load} % of the sidecar's capacity ÷ the same of the server that allows everything", None, None,
            )
            for quantile in ("p50", "p99", "p999")
            for load in (30, 50, 70)
        },
        "latency_p99_control": ("p99 at 50 % of the sidecar's capacity ÷ itself: the noise of the machine", None, None),
    },
    "Through Envoy, one worker thread": {
        "envoy_vs_allow": ("ours ÷ the server that allows everything, both on a processor beside Envoy's", "min", 0.97),
        "envoy_vs_same_response": ("ours ÷ the same server, answering as the sidecar does", None, None),
        "envoy_tcp_vs_allow": ("ours over TCP ÷ the same server over a Unix socket", None, None),
        "envoy_vs_jwt_authn": ("ours ÷ Envoy's `jwt_authn` without its cache", "min", 1.4),
        "envoy_vs_jwt_authn_cached": ("ours ÷ Envoy's `jwt_authn` with its cache", None, None),
        "envoy_vs_no_filter": ("ours ÷ no filter", None, None),
        "envoy_vs_oauth2_proxy": ("ours, with a cached token ÷ oauth2-proxy, which verifies the token of each request", None, None),
        "envoy_control": ("ours ÷ itself: the noise of the machine", None, None),
        "envoy_vs_allow_one_core": ("ours ÷ the server that allows everything, on Envoy's processor", None, None),
        "envoy_vs_same_response_one_core": (
            "ours ÷ the same server, answering as the sidecar does, on Envoy's processor", None, None,
        ),
        "envoy_tcp_vs_allow_one_core": (
            "ours over TCP ÷ the same server over a Unix socket, on Envoy's processor", None, None,
        ),
        "envoy_vs_jwt_authn_one_core": ("ours, on Envoy's processor ÷ `jwt_authn` without its cache", None, None),
        "envoy_vs_jwt_authn_cached_one_core": ("ours, on Envoy's processor ÷ `jwt_authn` with its cache", None, None),
        "envoy_vs_no_filter_one_core": ("ours, on Envoy's processor ÷ no filter", None, None),
        "envoy_vs_oauth2_proxy_one_core": ("ours ÷ oauth2-proxy, both on Envoy's processor", None, None),
        "envoy_control_one_core": ("ours ÷ itself, on Envoy's processor: the noise of the machine", None, None),
    },
    "Control plane, on one processor": {
        "verify_http": ("`verify` ÷ a constant axum route over TLS", "min", 0.8),
        "verify_control": ("`verify` ÷ itself: the noise of the machine", None, None),
    },
    "Control plane and Ory Hydra with PostgreSQL, each with it on one processor": {
        "tokens_vs_hydra": (
            "tokens by `client_credentials` and `private_key_jwt`, 200 clients ÷ the same of Hydra", "min", 4,
        ),
        "introspect_vs_hydra": ("introspections of 200 tokens ÷ the same of Hydra", "min", 15),
        "verify_vs_hydra": ("`verify` of 200 tokens ÷ introspections of Hydra", "min", 15),
    },
    "Growth: few ÷ many": {
        "growth_worst": ("the worst of the figures between 1,000 and 1,000,000 agents", "max", 1.2),
        "growth_check_1000000": (
            "checks: 1,000 agents, all of them changed ÷ 1,000,000 agents, 100,000 of them changed", None, None,
        ),
        **{
            f"growth_{operation}_{engine}_{agents}": (
                f"{operation.replace('_', ' ')}, {engine}: 1,000 agents ÷ {agents:,}", None, None,
            )
            for operation in ("login", "refresh", "role_change", "feedback", "verify")
            for engine in ("sqlite", "postgres")
            for agents in (100_000, 1_000_000)
        },
        **{
            f"growth_{operation}_{engine}_control": (
                f"{operation.replace('_', ' ')}, {engine}: 1,000 agents ÷ 1,000 agents: the noise of the machine", None, None,
            )
            for operation in ("login", "refresh", "role_change", "feedback", "verify")
            for engine in ("sqlite", "postgres")
        },
        **{
            f"growth_role_change_streams_{streams}": (
                f"role changes: 1 sync stream ÷ {streams:,}, each of another service", None, None,
            )
            for streams in (100, 1_000)
        },
    },
    "Two replicas with PostgreSQL, each with a fifth of a processor ÷ one": {
        **{
            f"two_replicas_{operation}": (f"{operation.replace('_', ' ')}; 2 is the best", None, None)
            for operation in ("login", "refresh", "role_change", "feedback")
        },
        "two_replicas_control": ("logins of one ÷ themselves: the noise of the machine", None, None),
    },
}

# The ends of the names of each peer's figures, which are missing if the peer is absent.
PEERS = {"hydra": ("_vs_hydra",), "oauth2-proxy": ("_vs_oauth2_proxy", "_vs_oauth2_proxy_one_core")}

# What the bytes in the report are.
BYTES = {
    "sidecar_per_changed_agent": "memory of a sidecar per changed agent in its view",
    "control_plane_per_stream": "memory of a control plane per sync stream with a connection of its own",
}

INTRODUCTION = """# Benchmark

`make bench` has written this page, `report.json` and the plots. It measures each figure beside a limit, in alternating rounds,
and a figure is the ratio of both. Both sides of a ratio were measured on the same machine, so a ratio says more than an absolute
number, but a machine with another processor, disk or kernel has other ratios, too. [Performance](../docs/performance.md) explains the
figures and how they are measured.

- *ratio*: the median of the rounds. *spread*: half of the distance between their quartiles.
- *interval*: where the median of endless rounds would be, with a probability of at least 95 %. If it contains the aim, these rounds do
  not decide whether the aim is reached.
- *both sides*: the medians of what is compared. *busy*: how much of the processor of the servers both sides used, with what the
  hypervisor took from it. What a benchmark process does itself, such as commits to SQLite, is on the other processor. Where busy is well
  below 100 % on both sides, something else was the limit. At fixed arrivals, it follows from the load.
- A figure whose name contains `control` compares something with itself. Its distance from 1 is the noise of the machine.
- Peers that are not installed, which needs Go: {absent}.
- Measured at commit `{commit}` with {rounds} rounds, on {processors} processors ({machine}), in {minutes} minutes.
"""


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    report = json.loads((folder / "report.json").read_text())
    absent = report["run"]["absent"]
    text = [INTRODUCTION.format(**report["run"] | {"absent": ", ".join(absent) or "none"})]
    for number, (title, figures) in enumerate(FIGURES.items()):
        measured = {name: figure for name, figure in figures.items() if name in report}
        if not measured:
            continue
        plot = f"plot-{number + 1}.png"
        draw(folder / plot, title, report, measured)
        text.append(f"\n## {title}\n\n![{title}]({plot})\n\n{table(report, measured)}")
    if report["bytes"]:
        rows = "".join(f"| {BYTES[name]} | {size:,.0f} |\n" for name, size in report["bytes"].items())
        text.append(f"\n## Memory\n\n| What | Bytes |\n|---|---|\n{rows}")
    binaries = "".join(f"\n- `{name}`: `{digest}`" for name, digest in report["run"]["binaries"].items())
    text.append(f"\n## Measured programs\n\nSHA-256 of the programs, built with the release profile:\n{binaries}\n")
    (folder / "report.md").write_text("".join(text))
    if "--complete" in sys.argv[2:] and (missing := missing_figures(report, absent)):
        sys.exit(f"these figures are missing: {', '.join(missing)}")


def missing_figures(report: dict, absent: list[str]) -> list[str]:
    """The names of figures that the report does not have, although their peers are installed."""
    excused = tuple(suffix for peer in absent for suffix in PEERS[peer])
    names = [name for figures in FIGURES.values() for name in figures if not name.endswith(excused)]
    return [name for name in names if name not in report] + [name for name in BYTES if name not in report["bytes"]]


def table(report: dict, figures: dict) -> str:
    rows = [
        "| Figure | What is compared | Ratio | Spread | Interval | Aim | Reached | Both sides | Busy |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, (what, direction, aim) in figures.items():
        figure = report[name]
        sign = {"min": "≥", "max": "≤", None: ""}[direction]
        bounds = interval(figure["rounds"])
        ours, other = (f"{side:,.0f}" if side >= 10 else f"{side:.3g}" for side in figure["sides"])
        busy = " and ".join(f"{share:.0%}" for share in figure["busy"])
        rows.append(
            f"| `{name}` | {what} | {figure['ratio']:.2f} | {figure['spread']:.2f} | {bounds[0]:.2f} to {bounds[1]:.2f} | "
            f"{sign} {aim if aim else ''} | {reached(bounds, direction, aim)} | {ours} and {other} | {busy} |"
        )
    return "\n".join(rows) + "\n"


def interval(rounds: list[float]) -> tuple[float, float]:
    """An interval that contains the true median with a probability of at least 95 %. The true median is below the k-th smallest of n
    rounds with the probability that a coin shows heads in fewer than k of n tosses. With too few rounds, the interval contains all."""
    ordered, below, left_out = sorted(rounds), 0.0, 0
    for heads in range(len(ordered) // 2):
        below += math.comb(len(ordered), heads) / 2 ** len(ordered)
        if below > 0.025:
            break
        left_out = heads
    return ordered[left_out], ordered[-1 - left_out]


def reached(bounds: tuple[float, float], direction: str | None, aim: float | None) -> str:
    if direction is None:
        return ""
    is_reached = [bound >= aim if direction == "min" else bound <= aim for bound in bounds]
    return "yes" if all(is_reached) else "**no**" if not any(is_reached) else "undecided"


def draw(path: pathlib.Path, title: str, report: dict, figures: dict) -> None:
    """Draws a box of the rounds of each figure, and its aim."""
    names = list(reversed(figures))
    plot, axes = plt.subplots(figsize=(9, 0.7 + 0.42 * len(names)), layout="constrained")
    axes.boxplot([report[name]["rounds"] for name in names], orientation="horizontal", tick_labels=names, whis=(0, 100))
    for place, name in enumerate(names, start=1):
        _, _, aim = figures[name]
        if aim:
            axes.plot([aim, aim], [place - 0.35, place + 0.35], color="tab:red", linewidth=2)
    axes.axvline(1, color="gray", linewidth=0.8, linestyle=":")
    # On this scale, a ratio and its inverse are equally far from 1, and one slow round does not squeeze all others.
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda ratio, _: f"{ratio:g}")
    axes.set_xlabel("ratio (red: aim)")
    axes.set_title(title)
    axes.grid(axis="x", linewidth=0.3)
    plot.savefig(path, dpi=110)
    plt.close(plot)


if __name__ == "__main__":
    main()
