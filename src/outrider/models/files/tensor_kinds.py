"""Kinds of tensors in GGUF files, and the sizes of their blocks; :mod:`outrider.models.files.dequantize` reads them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TensorKind:
    """How one GGUF tensor kind packs its elements: a block is `block_bytes` long and holds `block_elements`."""

    name: str
    block_elements: int
    block_bytes: int


# GGUF tensor type id -> its kind.
TENSOR_KINDS: dict[int, TensorKind] = {
    0: TensorKind("F32", 1, 4),
    1: TensorKind("F16", 1, 2),
    2: TensorKind("Q4_0", 32, 18),
    3: TensorKind("Q4_1", 32, 20),
    6: TensorKind("Q5_0", 32, 22),
    7: TensorKind("Q5_1", 32, 24),
    8: TensorKind("Q8_0", 32, 34),
    12: TensorKind("Q4_K", 256, 144),
    13: TensorKind("Q5_K", 256, 176),
    14: TensorKind("Q6_K", 256, 210),
    30: TensorKind("BF16", 1, 2),
}
