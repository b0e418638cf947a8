"""Runs a tiny Llama on the simulated accelerator again and again while SIM_FAULT strikes.

usage: PYTHONPATH=tests sim_fault_child.py TURNS. Prints JSON: for each turn the name of the error
(null: none), its words, whether it is one that core or torch types, whether the tokens are plain
transformers' on the CPU, and how many allocations are left.
"""

from __future__ import annotations

import copy
import faulthandler
import gc
import json
import sys

import torch
from clib_judge import target
from tiny_llama import batch, greedy, tiny

from vllm_adapter.engine.device import open_record
from vllm_adapter.engine.integrations.transformers.adapt import adapt, unadapt
from vllm_adapter.errors import DeviceLost, VllmAdapterError
from vllm_adapter.settings import Fallback, Settings

TYPED = (VllmAdapterError, torch.OutOfMemoryError)


def answer(model, given, opened):
    mine = copy.deepcopy(model)
    there = {name: tensor.to("sim:0") for name, tensor in given.items()}
    adapt(mine, opened, settings=Settings(fallback=Fallback.ERROR))
    try:
        return greedy(mine, there).cpu().tolist()
    finally:
        unadapt(mine)


def main():
    faulthandler.dump_traceback_later(240, exit=True)  # before the time limit of whoever waits
    opened = open_record(target().record, 0, Settings.from_environ())
    model, given, turns = tiny(), batch(11, 3, 30), []
    wanted = greedy(model, given).tolist()
    for _ in range(int(sys.argv[1])):
        turn = {"error": None, "words": "", "typed": True, "right": None}
        try:
            turn["right"] = answer(model, given, opened) == wanted
        except Exception as error:
            turn["error"], turn["words"] = type(error).__name__, str(error)
            turn["typed"] = isinstance(error, TYPED)
        gc.collect()
        try:
            turn["live"] = opened.runtime.memory_stats(0).live_allocations
        except DeviceLost:
            turn["live"] = None
        turns.append(turn)
    print(json.dumps(turns))


if __name__ == "__main__":
    main()
