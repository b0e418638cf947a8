"""Every error the project raises on purpose.

VllmAdapterError
├── InputError              what the caller gave cannot be used
│   ├── SettingError        a VA_* variable
│   ├── ManifestError       an adapter.json
│   ├── CapabilityError     a capability descriptor
│   ├── CertificateError    a certificate file
│   └── DeviceUnhealthy     a device that is lost, held or throttled, and a policy refuses it
├── AdapterError            an adapter cannot be used on this machine
│   └── LibraryError        a C library that cannot be used, or must not be loaded
├── DeviceError             the runtime of a device
│   ├── NoSuchDevice        an index that the runtime does not have
│   ├── OutOfMemory         the device cannot give that much
│   ├── AllocationFreed     used, or freed again, after free()
│   ├── OutOfBounds         a copy that leaves its allocation
│   ├── DeviceLost          the device is gone, for good
│   ├── LaunchFailed        work that could not be started, or failed while it ran
│   └── ForkedDevice        a device that was opened before the fork of this process
├── DeviceRefused           another device than VA_REQUIRE_DEVICE names
├── UnsupportedCase         no implementation accepts an operator's case
└── UnsupportedModel        a model or generation mode that we refuse

None derives from NotImplementedError: dynamo renames such errors, and a refusal must
keep its name when it is raised while tracing.
"""

from __future__ import annotations


class NewerFormat(UserWarning):
    """A file is of a newer minor version than this release: what is new in it is ignored."""


class VllmAdapterError(RuntimeError):
    """Base of all. `str()` is one sentence about what was seen, then the next step.

    `code` is a key of `contract.codes.CODES`; `vllm-adapter explain CODE` prints its page.
    """

    code: str = "VA0001"

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} [{self.code}]\nhint: {self.hint}"

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.hint)


def _rebuild(kind: type[VllmAdapterError], message: str, hint: str) -> VllmAdapterError:
    error = kind.__new__(kind)
    VllmAdapterError.__init__(error, message, hint=hint)
    return error


def _rebuild_coded(
    kind: type[DeviceUnhealthy], message: str, hint: str, code: str
) -> DeviceUnhealthy:
    return kind(message, hint=hint, code=code)


class InputError(VllmAdapterError):
    """The caller's file, argument or environment cannot be used; nothing was changed."""

    code = "VA0001"


class SettingError(InputError):
    """A VA_* variable has a value we cannot read."""

    code = "VA0002"


class ManifestError(InputError):
    """An adapter.json is missing, not JSON, or breaks a rule of its schema."""

    code = "VA0101"


class CapabilityError(InputError):
    """A capability descriptor is missing, not JSON, or breaks a rule of its schema."""

    code = "VA0201"


class CertificateError(InputError):
    """A certificate is missing, not JSON, breaks its schema, or was altered."""

    code = "VA0301"


class DeviceUnhealthy(InputError):
    """A device is not in order before it is opened. `code` is that of the finding."""

    code = "VA1704"

    def __init__(self, message: str, *, hint: str, code: str = code) -> None:
        super().__init__(message, hint=hint)
        self.code = code

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_coded, (type(self), self.message, self.hint, self.code)


class AdapterError(VllmAdapterError):
    """An adapter that was asked for cannot be used here."""

    code = "VA0401"


class LibraryError(AdapterError):
    """A C library is missing, is for another machine or ABI, lacks functions, crashes or hangs.

    `hung` is whether it took all the time that it had.
    """

    code = "VA0402"
    hung = False


class DeviceError(VllmAdapterError):
    """A device's runtime failed."""

    code = "VA2001"


class NoSuchDevice(DeviceError):
    """A device index outside `range(get_device_count())`."""

    code = "VA2002"


class OutOfMemory(DeviceError):
    """The device cannot give the bytes that were asked for."""

    code = "VA2003"


class AllocationFreed(DeviceError):
    """An Allocation was used or freed after its free()."""

    code = "VA2004"


class OutOfBounds(DeviceError):
    """A copy would leave its allocation."""

    code = "VA2005"


class DeviceLost(DeviceError):
    """The device is gone: every later call of this process fails too."""

    code = "VA2006"


class LaunchFailed(DeviceError):
    """Work could not be started, or failed while it ran; what it should have written is void."""

    code = "VA2007"


class ForkedDevice(DeviceError):
    """The device was opened before this process was forked, and cannot be used in the child."""

    code = "VA2008"


class UnsupportedCase(VllmAdapterError):
    """No implementation accepts this case of an operator under the current policy."""

    code = "VA3001"


class UnsupportedModel(VllmAdapterError):
    """A model, cache or generation mode that the integration refuses."""

    code = "VA3101"


class DeviceRefused(VllmAdapterError):
    """Another device or adapter would be used than VA_REQUIRE_DEVICE or VA_ADAPTERS names."""

    code = "VA5001"
