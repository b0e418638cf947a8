"""Other vendors' runtimes: Moore Threads, MetaX, Cambricon, TPU, Neuron."""

from __future__ import annotations

from typing import Final

from vllm_adapter.doctor.text_rule import TextRule

RULES: Final = (
    TextRule(
        "VA1111",
        ("musa-capable", "maca-capable", "musaerrornodevice", "mcerrornodevice", "no musa gpus",
         "no mlu", "no maca", "no gcu"),
        r"(?i)no (?P<api>MUSA|MACA|MLU|GCU)-capable device is detected"
        r"|No (?:MUSA|MLU|MACA|GCU) (?:GPUs|devices?) (?:are|is) (?:available|found)"
        r"|(?:musa|mc)ErrorNoDevice",
        "the vendor's runtime counts no device in this process: the device nodes are not in the "
        "container, the kernel driver is not loaded, or a visible-devices variable hides all",
        "run the vendor's tool (mthreads-gmi, mx-smi, cnmon) in the same place; start the "
        "container with the flags of `vllm-adapter container`",
    ),
    TextRule(
        "VA1708",
        ("libtpu_lockfile", "tpu is already in use", "libtpu.so is already in use",
         "libtpu already in use"),
        r"(?i)The TPU is already in use by(?: a)? process(?:[^\n]*?pid (?P<pid>\d+))?"
        r"|libtpu(?:\.so)? (?:is )?already in use|/tmp/libtpu_lockfile",
        "another process holds the TPU, which serves one process: {pid}",
        "end that process (`sudo lsof -w /dev/accel* /dev/vfio/*`), then remove "
        "/tmp/libtpu_lockfile",
    ),
    TextRule(
        "VA1111",
        ("backend 'tpu'",),
        r"(?i)Unable to initialize backend 'tpu'[^\n]*",
        "libtpu finds no TPU: this is no TPU virtual machine, its devices are not in this "
        "container, or libtpu is of another release",
        "start the container with `--privileged --net=host`; look for /dev/accel* or /dev/vfio/*; "
        "install the libtpu that this torch_xla or jax names",
        only=r"(?i)torch[_-]xla|tpu[_-]inference|vllm[_-]tpu|platform tpu|tpu-vm|PJRT_DEVICE=TPU",
    ),
    TextRule(
        "VA1110",
        ("neuron driver", "aws-neuronx-dkms"),
        r"(?i)Unable to determine Neuron Driver version[^\n]*|aws-neuronx-dkms package is "
        r"(?:not )?"
        r"installed",
        "the Neuron kernel driver is not loaded on this host",
        "install aws-neuronx-dkms for the running kernel, `modprobe neuron`, and look at "
        "`neuron-ls`",
    ),
    TextRule(
        "VA1708",
        ("neuron core", "neuroncore", "nrt_init"),
        r"(?i)(?:Logical )?Neuron ?Core\(s\) not available - Requested:[^\n]*",
        "another process holds the NeuronCores, or fewer exist than were asked for",
        "`neuron-top` shows the holders; end them, or set NEURON_RT_VISIBLE_CORES to free ones",
    ),
)  # fmt: skip
