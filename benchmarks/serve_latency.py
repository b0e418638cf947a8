"""Does our platform add latency to vLLM? Two real servers on this machine, in alternating pairs.

    python benchmarks/serve_latency.py MODEL --pairs 8

Server A is plain vLLM (no plug-in is loaded), server B runs on our platform with an adapter that
declares no operator, so that every kernel is vLLM's own. Each block sends `--requests` streaming
completions, `--concurrency` at a time, to one server on 127.0.0.1, then to the other; who is first
alternates. Printed: the ratio B/A of the blocks' p50 and p99, as a geometric mean with its 95 %
interval (t over the pairs' logarithms). Judged on p50: pass below 1.05, fail above, else not
resolved, with the number of pairs that would resolve it at this spread.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import vllm_adapter_cpu

LIMIT = 1.05
START_S = 400.0
# 97.5 % quantiles of Student's t for 1 to 15 degrees of freedom; beyond, the normal one's 1.96
# is too small by less than 9 %.
T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def without_operators(folder: Path) -> Path:
    """A copy of the CPU adapter's descriptor that declares nothing."""
    source = Path(vllm_adapter_cpu.__file__).parent / "capabilities/x86_64.json"
    raw = json.loads(source.read_text(encoding="utf-8")) | {"operators": {}}
    file = folder / "no_operators.json"
    file.write_text(json.dumps(raw), encoding="utf-8")
    return file


@contextmanager
def server(model: str, port: int, log: Path, **variables: str) -> Iterator[None]:
    """A vLLM server that answers on the port; stopped at the end."""
    command = [sys.executable, "-m", "vllm_adapter.cli", "serve", model]
    command += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "model"]
    command += ["--dtype", "float32", "--enforce-eager", "--max-model-len", "512"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=os.environ | variables,
            start_new_session=True,
        )
    try:
        wait_until_healthy(process, port, log)
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_until_healthy(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Waits for /health; leaves with the log's last lines if the server ends first."""
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(0.5)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
    sys.exit(f"the server on port {port} did not become healthy:\n{tail}")


def request(port: int, number: int, tokens: int) -> float:
    """Seconds of one streaming completion, to its last byte."""
    body = {
        "model": "model",
        "prompt": f"Request {number}: a short story about a robot.",
        "max_tokens": tokens,
        "min_tokens": tokens,
        "temperature": 0,
        "stream": True,
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    started = time.perf_counter()
    connection.request(
        "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
    )
    response = connection.getresponse()
    text = response.read()
    seconds = time.perf_counter() - started
    connection.close()
    if response.status != 200:
        sys.exit(f"status {response.status}: {text[:300]!r}")
    return seconds


def block(port: int, args: argparse.Namespace) -> tuple[float, float]:
    """(p50, p99) in seconds of one block of requests."""
    with ThreadPoolExecutor(args.concurrency) as pool:
        numbers = range(args.requests)
        seconds = sorted(pool.map(lambda n: request(port, n, args.tokens), numbers))
    return statistics.median(seconds), seconds[math.ceil(0.99 * len(seconds)) - 1]


def interval(ratios: list[float]) -> tuple[float, float, float, float]:
    """(geometric mean, lower, upper, spread of the logarithms) at 95 %."""
    logs = [math.log(ratio) for ratio in ratios]
    mean, spread = statistics.fmean(logs), statistics.stdev(logs)
    t = T[len(logs) - 2] if len(logs) - 2 < len(T) else 1.96
    half = t * spread / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half), spread


def verdict(ratios: list[float]) -> str:
    """pass, fail, or not resolved with the pairs that it would take."""
    mean, low, high, spread = interval(ratios)
    if high < LIMIT:
        return "pass"
    if low > LIMIT:
        return "fail"
    distance = abs(math.log(LIMIT) - math.log(mean))
    needed = math.ceil((1.96 * spread / distance) ** 2) if distance else math.inf
    return f"not resolved; about {max(needed, len(ratios) + 1)} pairs would resolve it"


def main() -> None:
    """Starts both servers, runs the pairs, prints the ratios and the verdict."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument(
        "--with-operators",
        action="store_true",
        help="leave the CPU adapter's operators in place: what they cost or gain",
    )
    args = parser.parse_args()
    if args.pairs < 2:
        parser.error("an interval needs at least 2 pairs")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ports = {"plain": free_port(), "ours": free_port()}
        ours = {"VA_ADAPTERS": "cpu"}
        if not args.with_operators:
            ours["VA_CAPABILITY"] = str(without_operators(folder))
        with (
            server(args.model, ports["plain"], folder / "plain.log", VLLM_PLUGINS=""),
            server(args.model, ports["ours"], folder / "ours.log", **ours),
        ):
            for port in ports.values():
                block(port, args)  # warm
            pairs = []
            for number in range(args.pairs):
                order = ("plain", "ours") if number % 2 == 0 else ("ours", "plain")
                seen = {who: block(ports[who], args) for who in order}
                pairs.append(seen)
                print(
                    number,
                    {w: [round(s * 1e3, 1) for s in p] for w, p in seen.items()},
                    flush=True,
                )
    for index, what in enumerate(("p50", "p99")):
        ratios = [pair["ours"][index] / pair["plain"][index] for pair in pairs]
        mean, low, high, _ = interval(ratios)
        plain = statistics.median(pair["plain"][index] for pair in pairs)
        ours = statistics.median(pair["ours"][index] for pair in pairs)
        print(
            f"{what}: plain {plain * 1e3:.1f} ms, ours {ours * 1e3:.1f} ms, "
            f"ratio {mean:.3f} [{low:.3f}, {high:.3f}] over {len(pairs)} pairs"
        )
    print("verdict on p50:", verdict([p["ours"][0] / p["plain"][0] for p in pairs]))


if __name__ == "__main__":
    main()
