"""Lists the fields that nvidia-smi reports of a GPU. The table makes the query, parses its cells, and defines the GPU's
JSON.

A field is (JSON name, type, nvidia-smi's names, first driver that knows it, the rule that judges it). The preferred
name comes first. Names are those of `nvidia-smi --help-query-gpu`; drivers are by recorded outputs. Types: "text";
"count" and "number"; "mib", bytes in JSON; "bits", hexadecimal; "flag", true or false.
"""

GPU_FIELDS: "tuple[tuple[str, str, tuple[str, ...], str, str], ...]" = (
    ("index", "count", ("index",), "", ""),
    ("name", "text", ("name",), "", "gpu-model"),
    ("memory", "mib", ("memory.total",), "", "gpu-memory"),
    ("uuid", "text", ("uuid",), "", ""),
    ("driver", "text", ("driver_version",), "", "driver-version"),
    ("ecc_errors", "count", ("ecc.errors.uncorrected.volatile.total",), "", "gpu-ecc"),
    # an old driver may not know the following fields; a launch requests only those up to BASIC
    ("used", "mib", ("memory.used",), "", "gpu-held"),
    ("mode", "text", ("compute_mode",), "", "gpu-prohibited"),
    ("mig", "flag", ("mig.mode.current",), "450", "gpu-mig"),
    ("slowed", "bits", ("clocks_event_reasons.active", "clocks_throttle_reasons.active"), "535", "gpu-throttled"),
    ("ecc_errors_ever", "count", ("ecc.errors.uncorrected.aggregate.total",), "", ""),
    ("ecc_corrected", "count", ("ecc.errors.corrected.volatile.total",), "", "gpu-ecc-corrected"),
    ("ecc_corrected_ever", "count", ("ecc.errors.corrected.aggregate.total",), "", ""),
    ("dram_errors_ever", "count", ("ecc.errors.uncorrected.aggregate.dram",), "450", ""),
    ("sram_errors_ever", "count", ("ecc.errors.uncorrected.aggregate.sram",), "450", "gpu-sram"),
    ("sram_exceeded", "flag", ("ecc.errors.uncorrected.aggregate.sram.thresholdExceeded",), "after 535", "gpu-sram"),
    ("rows_corrected", "count", ("remapped_rows.correctable",), "after 535", ""),
    ("rows_uncorrected", "count", ("remapped_rows.uncorrectable",), "after 535", "gpu-rows-failed"),
    ("rows_pending", "flag", ("remapped_rows.pending",), "after 535", "gpu-rows-pending"),
    ("rows_failed", "flag", ("remapped_rows.failure",), "after 535", "gpu-rows-failed"),
    ("pages_corrected", "count", ("retired_pages.single_bit_ecc.count",), "", "gpu-pages"),
    ("pages_uncorrected", "count", ("retired_pages.double_bit.count",), "", "gpu-pages"),
    ("pages_pending", "flag", ("retired_pages.pending",), "", "gpu-pages-pending"),
    ("recovery", "text", ("gpu_recovery_action",), "565", "gpu-recovery"),
    ("serial", "text", ("serial",), "", ""),
    ("bus", "text", ("pci.bus_id",), "", "gpu-xid"),
    ("capability", "text", ("compute_cap",), "510", ""),
    ("persistence", "flag", ("persistence_mode",), "", "gpu-persistence"),
    ("use", "count", ("utilization.gpu",), "", ""),
    ("temperature", "count", ("temperature.gpu",), "", "gpu-hot"),
    ("temperature_left", "number", ("temperature.gpu.tlimit",), "535", "gpu-hot"),
    ("power", "number", ("power.draw",), "", ""),
    ("power_limit", "number", ("power.limit",), "", "gpu-power-cap"),
    ("power_enforced", "number", ("enforced.power.limit",), "", "gpu-power-cap"),
    ("power_default", "number", ("power.default_limit",), "", "gpu-power-cap"),
    ("clock", "count", ("clocks.current.sm",), "", "gpu-clock"),
    ("clock_max", "count", ("clocks.max.sm",), "", "gpu-clock"),
    ("pcie_gen", "count", ("pcie.link.gen.current", "pcie.link.gen.gpucurrent"), "", "gpu-pcie-gen"),
    ("pcie_gen_max", "count", ("pcie.link.gen.max",), "", "gpu-pcie-gen"),
    ("pcie_width", "count", ("pcie.link.width.current",), "", "gpu-pcie-width"),
    ("pcie_width_max", "count", ("pcie.link.width.max",), "", ""),
    ("fabric", "text", ("fabric.state",), "525", "gpu-fabric"),
    ("fabric_status", "text", ("fabric.status",), "525", "gpu-fabric"),
)
BASE = 6  # number of fields that every driver knows. Without a value these are null; the others are missing.
BASIC = 10  # number of fields that a launch requests, by the names that the driver knows; `check` requests all
ROWS = "remapped_rows."  # drivers up to 535 report these only in a separate query
