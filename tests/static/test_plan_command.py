"""`vllm-adapter plan` and `explain MODEL`: outputs, exit codes, and what a figure changes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from model_configs import BERT_BASE, CONFIGS, LLAMA3_8B, LLAMA3_70B, QWEN3_06B

from vllm_adapter.cli.main import main

pytestmark = pytest.mark.static

ROOT = Path(__file__).parent.parent.parent
CUDA = ROOT / "adapters/cuda/src/vllm_adapter_cuda/capabilities"
REPORTS = ROOT / "tests/data/reports"
TOOLS = ROOT / "tests/data/tool_outputs"


@pytest.fixture
def model(tmp_path):
    """A folder with a published config alone."""

    def made(config: dict, name: str = "model") -> str:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config))
        return str(folder)

    return made


def run(capsys, *words: str) -> tuple[int, str, str]:
    code = main([*words])
    said = capsys.readouterr()
    return code, said.out, said.err


def planned(capsys, *words: str) -> tuple[int, dict]:
    code, out, _ = run(capsys, "plan", *words, "--json")
    return code, json.loads(out)


def values(document: dict) -> dict:
    return {line["key"]: line["value"] for line in document["lines"]}


def test_a_chip_that_is_not_here(capsys, model):
    code, found = planned(capsys, model(LLAMA3_8B), "--device-profile", "mi300x")
    assert code == 0 and found["fits"]
    lines = values(found)
    assert lines["weight_bytes"] == 16_060_522_496
    assert lines["kv_bytes_a_token"] == 131_072
    assert found["box"]["arch"] == "gfx942"
    # every figure that a line reads is there with its source
    reads = [one for line in found["lines"] for one in line["reads"]]
    assert {"pointer": "/memory/bandwidth_gb_s", "value": 5300}.items() <= next(
        one for one in reads if one["pointer"] == "/memory/bandwidth_gb_s"
    ).items()
    assert all(one["source"] for one in reads)


def test_the_same_command_line_on_three_chips_gives_three_right_lines(capsys, model):
    name, lines = model(LLAMA3_70B), {}
    for chip in ("mi300x:8", "h200:8", "t4:8"):
        code, found = planned(capsys, name, "--device-profile", chip, "--concurrency", "4")
        lines[chip] = (code, values(found))
    assert [lines[chip][0] for chip in lines] == [0, 0, 1]
    assert [lines[c][1]["dtype"] for c in lines] == ["bfloat16", "bfloat16", "float16"]
    assert [lines[c][1]["tensor_parallel"] for c in lines] == [1, 2, 8]
    assert [lines[c][1]["data_parallel"] for c in lines] == [8, 4, 1]


def test_what_does_not_fit_says_what_would_and_at_what_cost(capsys, model):
    code, out, _ = run(
        capsys, "plan", model(LLAMA3_70B), "--device-profile", "l40s:4", "--concurrency", "64"
    )
    assert code == 1
    assert "does not fit" in out and "no command" in out
    remedies = out.partition("what would make it fit")[2]
    order = ["context", "concurrency", "kv_dtype", "weight_dtype", "devices"]
    places = [remedies.index(f"\n  {word}") for word in order]
    assert places == sorted(places)
    assert "bytes a token are summed" in " ".join(remedies.split())


def test_the_operators_own_flags_win_and_it_is_said(capsys, model):
    own = ["--", "--max-num-seqs", "7", "--dtype=float16", "--enforce-eager", "--seed", "3"]
    code, out, _ = run(capsys, "plan", model(LLAMA3_8B), "--device-profile", "h200", *own)
    assert code == 0
    (line,) = (text for text in out.splitlines() if text.startswith("vllm serve"))
    assert line.count("--max-num-seqs") == line.count("--dtype") == 1
    assert line.endswith("--max-num-seqs 7 --dtype=float16 --enforce-eager --seed 3")
    assert out.count("[operator]") == 3


def test_vllm_args_are_flags_and_nothing_else(capsys, model):
    code, out, _ = run(capsys, "plan", model(LLAMA3_8B), "--device-profile", "h200", "--vllm-args")
    assert code == 0
    assert out.startswith("--max-model-len 8192 --dtype bfloat16 ") and out.count("\n") == 1
    words = ("--device-profile", "t4", "--vllm-args")
    code, out, err = run(capsys, "plan", model(LLAMA3_70B), *words)
    assert (code, out) == (1, "") and "does not fit" in err, "flags of what fits, or none"


def test_the_same_facts_give_the_same_line(capsys, model):
    words = ["plan", model(LLAMA3_8B), "--device-profile", "mi300x:4"]
    assert run(capsys, *words) == run(capsys, *words)


def changed(tmp_path, **figures) -> str:
    raw = json.loads((CUDA / "sm_90-h200.json").read_text())
    for path, value in figures.items():
        section, _, name = path.partition("__")
        raw[section][name] = value
    file = tmp_path / "changed.json"
    file.write_text(json.dumps(raw))
    return str(file)


FIGURES = {
    "memory__bandwidth_gb_s": (2400, {"sequences", "prefill_chunk"}),
    "memory__capacity_bytes": (80_000_000_000, {"device_memory", "kv_bytes", "kv_blocks"}),
    "memory__runtime_reserve_bytes": (2 << 30, {"runtime_reserve", "kv_bytes", "kv_blocks"}),
    "execution__graph_capture": (False, {"compile_mode"}),
    "dma__engine_count": (4, {"prefill_chunk"}),
    "kv__preferred_block": (64, {"block_size", "kv_blocks"}),
    "numerics__native_bfloat16": (False, {"dtype"}),
}


@pytest.mark.parametrize(("figure", "change"), FIGURES.items())
def test_one_figure_changes_the_lines_that_read_it(capsys, model, tmp_path, figure, change):
    value, wanted = change
    old, new = str(CUDA / "sm_90-h200.json"), changed(tmp_path, **{figure: value})
    name = model(LLAMA3_8B)
    code, out, _ = run(capsys, "plan", name, "--json", "--diff", old, new)
    found = json.loads(out)["changes"]
    assert code == 1
    assert wanted <= {one["key"] for one in found}
    pointer = "/" + figure.replace("__", "/")
    read = [one["key"] for one in found if pointer in [f["pointer"] for f in one["figures"]]]
    assert read, "a line that changed names the figure"
    assert not {"context", "ranks"} & {one["key"] for one in found}
    assert run(capsys, "plan", name, "--diff", old, old)[0] == 0


def test_diff_of_profiles_of_reports_and_of_versions_of_an_adapter(capsys, model, tmp_path):
    name = model(LLAMA3_8B)
    code, out, _ = run(capsys, "plan", name, "--diff", "h200", "a100-sxm-80gb")
    assert code == 1 and "device_memory: 141,000,000,000 bytes -> 80,000,000,000 bytes" in out
    reports = ("nvidia-smi/02-wsl-smi-535-driver-537.txt", "collect-env/17-2080ti-8x-sm75.txt")
    code, out, _ = run(capsys, "plan", name, "--diff", *(str(REPORTS / one) for one in reports))
    assert code == 1 and "dtype: bfloat16 -> float16" in out
    package = CUDA.parent
    folder = tmp_path / "vllm_adapter_cuda"
    (folder / "capabilities").mkdir(parents=True)
    (folder / "adapter.json").write_text((package / "adapter.json").read_text())
    changed(tmp_path, kv__preferred_block=32)
    (tmp_path / "changed.json").rename(folder / "capabilities/sm_90-h200.json")
    words = ["--diff", str(package), str(folder), "--device-profile", "h200"]
    code, out, _ = run(capsys, "plan", name, *words)
    assert code == 1 and "block_size: 16 -> 32" in out
    code, out, err = run(capsys, "plan", name, "--diff", str(package), str(folder))
    assert code == 2 and "which of its descriptors" in err


def test_a_report_is_planned_on_what_devices_chooses(capsys, model):
    report = str(REPORTS / "collect-env/17-2080ti-8x-sm75.txt")
    _, found = planned(capsys, model(QWEN3_06B), "--report", report)
    main(["devices", "--report", report, "--json"])
    chosen = json.loads(capsys.readouterr().out)["choice"]["chosen"]
    assert [one["id"] for one in found["box"]["devices"]] == chosen
    assert values(found)["dtype"] == "float16"


def test_links_of_a_report_and_the_chip_of_a_profile(capsys, model):
    """Four cards joined in pairs: a group is a pair, and each worker is bound beside its card."""
    report = str(REPORTS / "topology-nvidia/22-4xa100-pcie-nvlink-pairs.txt")
    words = ["--report", report, "--device-profile", "a100-pcie-80gb", "--context", "4096"]
    code, found = planned(capsys, model(LLAMA3_70B), *words)
    lines = values(found)
    assert code == 0 and (lines["tensor_parallel"], lines["data_parallel"]) == (2, 2)
    assert [one["domain"] for one in lines["ranks"]] == [0, 0, 1, 1]
    assert "--numa-bind-nodes 0 1 2 3 --numa-bind-cpus 0-23 24-47" in found["vllm_serve"]
    flags = [one["flag"] for one in found["container"]]
    assert any("gpus" in flag for flag in flags)


def test_an_encoder_has_no_cache(capsys, model):
    code, found = planned(capsys, model(BERT_BASE), "--device-profile", "h200")
    assert code == 0 and "kv_blocks" not in values(found)
    assert "--block-size" not in found["vllm_serve"]


BAD = {
    "nothing": ["/nowhere/at/all", "--device-profile", "h200"],
    "a profile": ["{model}", "--device-profile", "h2000"],
    "several": ["{model}", "--device-profile", "a100"],
    "a count": ["{model}", "--device-profile", "h200:0"],
    "no report": ["{model}", "--device-profile", "h200", "--report", "x.txt"],
    "a count of a report": ["{model}", "--device-profile", "h200:8", "--report", "{report}"],
    "no name": ["{model}", "--report", "{report}"],
    "two outputs": ["{model}", "--device-profile", "h200", "--json", "--vllm-args"],
    "context": ["{model}", "--device-profile", "h200", "--context", "0"],
    "too long": ["{model}", "--device-profile", "h200", "--context", "9000"],
    "heads": ["{model}", "--device-profile", "h200:8", "--", "-tp", "5"],
    "devices": ["{model}", "--device-profile", "h200:2", "--", "-tp", "4"],
    "value": ["{model}", "--device-profile", "h200", "--", "--max-num-seqs", "many"],
    "fp8": ["{model}", "--device-profile", "mi210", "--", "--kv-cache-dtype", "fp8"],
    "family": ["{other}", "--device-profile", "h200"],
    "sizes": ["{broken}", "--device-profile", "h200"],
    "stray": ["{model}", "--device-profile", "h200", "stray"],
}


@pytest.mark.parametrize("words", BAD.values(), ids=BAD)
def test_bad_input_is_one_sentence(capsys, model, words):
    names = {
        "model": model(LLAMA3_8B),
        "other": model({"model_type": "mamba"}, "other"),
        "broken": model(LLAMA3_8B | {"num_hidden_layers": -4}, "broken"),
        "report": str(REPORTS / "topology-nvidia/22-4xa100-pcie-nvlink-pairs.txt"),
    }
    code, out, err = run(capsys, "plan", *(word.format(**names) for word in words))
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 2 and "Traceback" not in err


def test_advice_of_an_adapter_is_heard_and_named(tmp_path, site):
    """A plug-in that is really installed: its hook is asked with the demand, its line says so."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA3_8B))
    plugin = (
        "from vllm_adapter import hookimpl\n"
        "class Plugin:\n"
        "    @hookimpl\n"
        "    def plan_advice(self, demand, capability):\n"
        "        assert demand['heads'] == 32 and capability.identity.arch == 'sm_90'\n"
        "        return {'block_size': 48, 'sequences': 33, 'reason': 'odd kernels',\n"
        "                'environment': {'ACME_X': '1'}, 'colour': 'red'}\n"
    )
    package = site.make(
        "advisor", plugin=plugin, device={"torch_type": "cuda"}, capabilities="c/*.json"
    )
    (package / "c").mkdir()
    (package / "c/odd.json").write_text((CUDA / "sm_90-h200.json").read_text())
    done = site.run("-m", "vllm_adapter.cli", "plan", str(folder), "--device-profile", "odd")
    assert done.returncode == 0, done.stderr
    assert "48 [adapter]" in done.stdout and "33 [adapter]" in done.stdout
    assert "advice of adapter advisor: odd kernels" in done.stdout
    assert "advice of advisor on 'colour', 'red', is not taken" in done.stdout
    assert "ACME_X=1 vllm serve" in done.stdout


def test_explain_joins_the_plan_and_who_runs_what(capsys, model):
    name = model(LLAMA3_8B)
    code, out, _ = run(capsys, "explain", name, "--device-profile", "mi300x", "--json")
    found = json.loads(out)
    assert code == 0 and found["plan"]["fits"]
    by_name = {one["operator"]: one for one in found["operators"]}
    attention = by_name["paged_attention"]
    assert attention["case"] == {
        "dtype": "bfloat16",
        "head_size": 128,
        "block_size": 16,
        "kv_dtype": "auto",
        "gqa_ratio": 4,
        "window": 0,
        "soft_cap": 0.0,
    }
    assert attention["run"] and any(one["decision"] == "reject" for one in attention["entries"])
    assert {"linear", "rms_norm", "silu_and_mul", "rotary_embedding"} <= by_name.keys()
    code, out, _ = run(capsys, "explain", name, "--device-profile", "mi300x")
    assert "runs: " in out and "  not " in out
    code, _, err = run(capsys, "explain", name, "rms_norm")
    assert code == 2 and "is a model" in err


def test_planning_imports_neither_torch_nor_jsonschema(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["DeepSeek-V3"]))
    code = (
        "import sys; from vllm_adapter.cli.main import main\n"
        f"code = main(['plan', {str(tmp_path)!r}, '--device-profile', 'mi300x:8'])\n"
        "heavy = {'torch', 'jsonschema', 'numpy', 'transformers'} & set(sys.modules)\n"
        "assert code == 0 and not heavy, (code, heavy)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
