"""The result of a measured region: figures of each device, a table, and scalars for a writer such as TensorBoard's."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional


class DeviceResult(NamedTuple):
    """One framework on one device. Amounts are bytes; `None` means that the framework does not provide the figure."""

    framework: str
    ordinal: int
    """The number that the framework gives to the device."""
    device: Optional[str]
    """The UUID in NVML's format, if it is known."""
    allocated_before: int
    allocated_after: int
    highest_allocated: int
    """An amount that was reached in the region. It is the highest one if `exact`."""
    at_most_allocated: Optional[int]
    """An amount that was not exceeded in the region, if one is known."""
    exact: bool
    """Whether `highest_allocated` is the highest amount in the region."""
    reserved_before: Optional[int]
    reserved_after: Optional[int]
    highest_reserved: Optional[int]
    reserved_exact: bool
    """Whether `highest_reserved` is the highest amount in the region."""

    @property
    def name(self) -> str:
        """The framework and the number that it gives to the device, such as `pytorch:0`."""
        return "%s:%d" % (self.framework, self.ordinal)


class Measurement:
    """A measured region. The amounts are `None` until the region has ended, if no framework uses a GPU, or if `problem` is set and
    nothing was read.

    `highest_allocated` and the other amounts are those of `main`, the device with the highest amount; `devices` contains
    those of all devices.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.seconds: Optional[float] = None
        """The time from start to end, by the host's clock. Kernels may still be running at the end of a region."""
        self.devices: List[DeviceResult] = []
        self.problem: Optional[str] = None
        """Why a framework, or the whole region, could not be read; `None` if everything was read."""

    @property
    def main(self) -> Optional[DeviceResult]:
        """The device on which the region allocated the most; the first one if several are equal."""
        return max(self.devices, key=lambda device: device.highest_allocated, default=None)

    @property
    def allocated_before(self) -> Optional[int]:
        return None if self.main is None else self.main.allocated_before

    @property
    def allocated_after(self) -> Optional[int]:
        return None if self.main is None else self.main.allocated_after

    @property
    def highest_allocated(self) -> Optional[int]:
        return None if self.main is None else self.main.highest_allocated

    @property
    def at_most_allocated(self) -> Optional[int]:
        return None if self.main is None else self.main.at_most_allocated

    @property
    def exact(self) -> bool:
        return False if self.main is None else self.main.exact

    @property
    def reserved_before(self) -> Optional[int]:
        return None if self.main is None else self.main.reserved_before

    @property
    def reserved_after(self) -> Optional[int]:
        return None if self.main is None else self.main.reserved_after

    @property
    def highest_reserved(self) -> Optional[int]:
        return None if self.main is None else self.main.highest_reserved

    @property
    def reserved_exact(self) -> bool:
        return False if self.main is None else self.main.reserved_exact

    def scalars(self) -> Dict[str, float]:
        """The figures as scalars named `vram/<region>/<figure>`; if there are several devices, `vram/<region>/<device>/<figure>`."""
        scalars: Dict[str, float] = {}
        if self.seconds is not None:
            scalars["vram/%s/seconds" % self.name] = self.seconds
        for device in self.devices:
            prefix = "vram/%s/" % self.name if len(self.devices) == 1 else "vram/%s/%s/" % (self.name, device.name)
            scalars[prefix + "highest_allocated_bytes"] = device.highest_allocated
            if device.highest_reserved is not None:
                scalars[prefix + "highest_reserved_bytes"] = device.highest_reserved
        return scalars

    def log(self, writer: Any, step: Optional[int] = None) -> None:
        """Writes `scalars()` with `writer.add_scalar(name, value, step)`, which is a method of TensorBoard's SummaryWriter."""
        for name, value in self.scalars().items():
            writer.add_scalar(name, value, step)

    def __str__(self) -> str:
        title = self.name if self.seconds is None else "%s: %.4f s" % (self.name, self.seconds)
        if not self.devices:
            return title + (", no framework uses a GPU" if self.problem is None else ", not measured: " + self.problem)
        rows = [("MiB", "allocated before", "after", "highest", "reserved before", "after", "highest")]
        for device in self.devices:
            rows.append(
                (
                    device.name,
                    _mib(device.allocated_before),
                    _mib(device.allocated_after),
                    _mib(device.highest_allocated, device.exact),
                    _mib(device.reserved_before),
                    _mib(device.reserved_after),
                    _mib(device.highest_reserved, device.reserved_exact),
                )
            )
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = ["  ".join([row[0].ljust(widths[0])] + [row[i].rjust(widths[i]) for i in range(1, len(row))]) for row in rows]
        return "\n".join([title] + lines + ([] if self.problem is None else ["not measured: " + self.problem]))

    def __repr__(self) -> str:
        return "<Measurement %s>" % str(self).replace("\n", "; ")


def _mib(amount: Optional[int], exact: bool = True) -> str:
    if amount is None:
        return "-"
    return ("" if exact else ">=") + "%.1f" % (amount / 1048576)
