"""The sections of a capability descriptor: its figures, with where they are from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Final, Literal, NotRequired, TypedDict

from msgspec import Meta, Struct

from vllm_adapter.contract.manifest import TorchType
from vllm_adapter.contract.reading import LEFT_OUT, SOME, Count, Rate, Text, Whole

DEFAULT_BLOCK: Final = 16
UNIT_DTYPES: Final = (
    *("float64", "float32", "tfloat32", "float16", "bfloat16"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float4_e2m1fn"),
    *("int8", "int4"),
)


class Source(Struct, frozen=True):
    """Where a figure is from."""

    kind: Literal["measured", "queried", "datasheet", "assumed"]
    """measured on the device, queried from it or its driver, read in a datasheet, or assumed."""
    reference: Text | None = None
    """What a reader can follow: a document and page, a command, a rule of the conformance
    suite."""


GivenSource = Annotated[
    Source | None, LEFT_OUT, Meta(description="Where the figures of this section are from.")
]
_Pair = Annotated[tuple[Whole, Whole], Meta(extra={"need": "[major, minor], both whole numbers"})]


class Identity(Struct, frozen=True):
    """Which device this is."""

    vendor: Text
    """The vendor's name as people read it."""
    arch: Annotated[Text, Meta(examples=["gfx942"])]
    """The arch as the vendor's tools name it: what this file is chosen by."""
    torch_type: TorchType | None = None
    """Torch device type, or null where torch has none."""
    name: Text | None = None
    """The device's name as people read it."""
    capability_id: _Pair | None = None
    """[major, minor], compared only inside one arch family; null where the vendor has no such
    number."""
    source: GivenSource = None


class ComputeUnit(Struct, frozen=True):
    """Peak of one dtype, dense."""

    throughput_gflops: Rate | None = None
    """Peak rate in 10^9 operations a second, dense; a multiply-add counts as two. Integer dtypes
    count integer operations."""
    ops_per_clock_per_unit: Rate | None = None
    """Operations of one unit in one clock; with units and clock_ghz it gives the peak where
    throughput_gflops is null. Null when unknown."""
    units: Count | None = None
    """Compute units of this kind on the device."""
    clock_ghz: Rate | None = None
    """Clock under load, in GHz."""
    max_threads: Count | None = None
    """Threads that the device holds at once for this dtype."""
    emulated: bool | None = None
    """Whether the dtype is stored, but computed in another."""
    accumulate: Annotated[Text | None, Meta(examples=["float32"])] = None
    """Dtype in which products are summed at this rate, where the rate depends on it."""
    source: GivenSource = None

    @property
    def peak_gflops(self) -> float | None:
        """The declared throughput, or ops per clock per unit x units x clock."""
        if self.throughput_gflops is not None:
            return self.throughput_gflops
        if None in (self.ops_per_clock_per_unit, self.units, self.clock_ghz):
            return None
        assert self.ops_per_clock_per_unit is not None and self.units is not None
        assert self.clock_ghz is not None
        return self.ops_per_clock_per_unit * self.units * self.clock_ghz


if TYPE_CHECKING:
    Units = Mapping[str, ComputeUnit]
else:
    Units = TypedDict(
        "Units",
        {d: Annotated[ComputeUnit, Meta(description=f"Units for {d}.")] for d in UNIT_DTYPES}
        | {"source": GivenSource},
        total=False,
    )


class Memory(Struct, frozen=True):
    """Device memory."""

    capacity_bytes: Count | None = None
    """Memory of one device, in bytes."""
    bandwidth_gb_s: Rate | None = None
    """Peak memory bandwidth in 10^9 bytes a second."""
    alignment_bytes: Count | None = None
    """Alignment in bytes that every allocation has at least."""
    transfer_alignment_bytes: Count | None = None
    """Alignment in bytes that copies between host and device need."""
    managed_memory_supported: bool | None = None
    """Whether memory can migrate between host and device by itself."""
    unified: bool | None = None
    """Whether device memory is the host's own memory."""
    runtime_reserve_bytes: Whole | None = None
    """Bytes that driver and runtime keep for themselves on each device."""
    free_step_bytes: Whole | None = None
    """Steps in bytes in which free memory falls and rises, where a pool takes and keeps memory and
    cannot tell what it holds; null: by what each allocation takes."""
    source: GivenSource = None


class Dma(Struct, frozen=True):
    """Copy engines."""

    engine_count: Whole | None = None
    """Copy engines of the device."""
    max_concurrent_transfers: Whole | None = None
    """Copies that can be under way at once."""
    source: GivenSource = None


class Execution(Struct, frozen=True):
    """How kernels run."""

    subgroup_size: Count | None = None
    """Threads that run in lockstep (warp, wavefront, sub-group); null also where a chip has no
    such thing. Null when unknown."""
    shared_memory_bytes: Whole | None = None
    """Scratch memory that one work-group can use, in bytes."""
    max_grid: Count | None = None
    """Greatest number of work-groups in one launch."""
    fence_scope: Annotated[Text | None, Meta(examples=["warp", "wavefront", "work_group"])] = None
    """Narrowest scope of a memory fence, in the vendor's word."""
    graph_capture: bool | None = None
    """Whether a sequence of launches can be captured and replayed."""
    source: GivenSource = None


class Numerics(Struct, frozen=True):
    """Number formats whose meaning differs between chips."""

    fp8_flavour: Literal["e4m3fn", "e4m3fnuz"] | None = None
    """The chip's eight-bit float; null when unknown or when it has none."""
    fp8_max: Rate | None = None
    """Largest value of that float that may be used: 448 for e4m3fn, 240 for e4m3fnuz, and 240 for
    e4m3fn where the chip uses a smaller range (Gaudi 2)."""
    deterministic: bool | None = None
    """Whether the same input gives bitwise the same output."""
    native_fp8: bool | None = None
    """Whether matrices of that float are multiplied natively; false also where the chip has
    none."""
    native_fp4: bool | None = None
    """Whether matrices of four-bit floats (E2M1 with scales) are multiplied natively."""
    native_bfloat16: bool | None = None
    """Whether bfloat16 is computed natively."""
    source: GivenSource = None


class Kv(Struct, frozen=True):
    """Paged KV cache."""

    block_multiple: Count | None = None
    """Tokens in a block must be a multiple of this."""
    preferred_block: Count | None = None
    """Tokens in a block that the kernels run best with."""
    source: GivenSource = None

    @property
    def block_size(self) -> int:
        """Tokens of a block where nobody asks for another size: one that the chip can use."""
        step = self.block_multiple or 1
        return self.preferred_block or -(-DEFAULT_BLOCK // step) * step


class Vllm(Struct, frozen=True):
    """Names that vLLM asks a platform for."""

    dist_backend: Annotated[Text | None, Meta(examples=["nccl"])] = None
    """Backend of torch.distributed."""
    visible_devices_variable: Annotated[Text | None, Meta(examples=["CUDA_VISIBLE_DEVICES"])] = (
        None
    )
    """Environment variable that hides devices; null where there is none."""
    container_visible_devices_variable: Annotated[
        Text | None, Meta(examples=["ASCEND_VISIBLE_DEVICES"])
    ] = None
    """Variable by which the vendor's container runtime chooses devices, where it is another one;
    null where there is none."""
    relative_speed: Mapping[str, Annotated[float, Meta(gt=0)]] | None = None
    """Speed of decoding with this adapter's operator in place of vLLM's own kernel, as a share of
    that with vLLM's, where vLLM has a platform for the device. Of the operators here those at 1 or
    more are used in vLLM, and no others; null: nothing was measured, and all are."""
    source: GivenSource = None


class DriverBuild(TypedDict):
    """One runtime of torch builds."""

    runtime: Annotated[Text, Meta(examples=["cuda", "hip"])]
    """Runtime that torch was built for."""
    version: Annotated[Text, Meta(examples=["12"])]
    """Its version, or the first parts of it."""
    minimum: NotRequired[Text]
    """Oldest driver with which a process of this build starts."""
    tested: NotRequired[Annotated[tuple[Text, ...], SOME]]
    """Releases of the driver that the vendor supports with this runtime, or the first parts of
    them; others may work."""


class Downgrade(TypedDict):
    """One downgrade."""

    feature: Annotated[Text, Meta(examples=["float8_e4m3fn"])]
    """The feature that is lost."""
    below: Text
    """Drivers older than this lack it."""
    to: Annotated[Text, Meta(examples=["float16"])]
    """What is used in its place."""
    reason: Text
    """Why, in words that a user understands."""


class DriverRequirement(TypedDict, total=False):
    """Driver versions, as the driver writes them."""

    component: Annotated[Text | None, Meta(examples=["nvidia"])]
    """Which driver the versions below are of, as host facts name it."""
    minimum: Text | None
    """Oldest driver that works."""
    builds: tuple[DriverBuild, ...]
    """What a torch build needs of the driver. The entry with the longest version that the build's
    version begins with is used."""
    blocked: tuple[Text, ...]
    """Drivers that are known not to work."""
    downgrades: tuple[Downgrade, ...]
    """Features that an older driver does not have, and what is used in their place."""
    source: GivenSource
