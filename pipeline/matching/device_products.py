"""`products` in torch, for references in the memory of a CUDA device; runs in the calling thread's stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeVar

import numpy as np
import torch

from pipeline.errors import DeviceError
from pipeline.matching.columns import Column, dead_between
from pipeline.matching.products import MOST_ROWS
from pipeline.runtime.device import finish
from pipeline.types import FloatArray, IntArray

# As in `products`, but each chunk costs a synchronisation.
_CHUNK: Final = 2048
_ELEMENTS: Final = 2**25
_Found = TypeVar("_Found")


class DeviceVectors:
    """[n, d] float32 references in a device's memory. Same interface as `products.HostVectors`."""

    def __init__(self, rows: torch.Tensor, device: str) -> None:
        self.rows = rows
        self.device = device

    @classmethod
    def copied(cls, host: Column[np.float32], length: int, device: str) -> DeviceVectors:
        """Allocates as many rows as `host` has and copies the first `length`. Raises torch's errors."""
        vectors = cls(torch.empty(host.shape, dtype=torch.float32, device=device), device)
        for piece in host[:length].pieces():
            vectors.write(piece.start, host.checked(piece.start, piece.stop))
        return vectors

    def write(self, start: int, rows: FloatArray) -> None:
        """Copies `rows` to row `start` onwards."""
        own = rows if rows.flags.writeable else rows.copy()  # torch warns about read-only arrays
        self.rows[start : start + len(rows)].copy_(torch.from_numpy(own))
        finish(str(self.rows.device))  # searches use other streams

    def __getitem__(self, rows: slice) -> DeviceVectors:
        return DeviceVectors(self.rows[rows], self.device)

    @staticmethod
    def in_parts(search: Callable[[slice], _Found], queries: int) -> list[tuple[slice, _Found]]:
        parts = [slice(start, min(start + MOST_ROWS, queries)) for start in range(0, queries, MOST_ROWS)]
        return [(part, search(part)) for part in parts]  # sequential: all use the same device

    def chunks(self, queries: FloatArray, dead: IntArray) -> Iterator[tuple[int, torch.Tensor]]:
        check_full_precision(self.rows.device)
        rows, count = len(queries), len(self.rows)
        chunk = max(_CHUNK, _ELEMENTS // rows)
        on_device = self._moved(queries)
        buffer = torch.empty(rows * min(chunk, count), dtype=torch.float32, device=self.rows.device)
        for start in range(0, count, chunk):
            references = self.rows[start : start + chunk]
            products = buffer[: rows * len(references)].view(rows, len(references))
            torch.mm(on_device, references.T, out=products)
            removed = dead_between(dead, start, start + len(references))
            if len(removed):
                products[:, self._moved(removed)] = -torch.inf
            yield start, products

    @staticmethod
    def maxima(cells: torch.Tensor) -> FloatArray:
        return np.asarray(cells.amax(dim=2).cpu().numpy())

    def reaching(
        self, cells: torch.Tensor, row: IntArray, cell: IntArray, limits: FloatArray
    ) -> tuple[IntArray, IntArray, FloatArray]:
        chosen = cells[self._moved(row), self._moved(cell)]
        return self._at(chosen, chosen >= self._moved(limits)[:, None])

    def pairs(self, vectors: FloatArray, partners: IntArray, cut: float) -> tuple[IntArray, IntArray, FloatArray]:
        check_full_precision(self.rows.device)
        queries, columns = self._moved(vectors), self._moved(partners)
        products = queries @ queries[columns].T
        before = columns < torch.arange(len(vectors), device=queries.device)[:, None]
        return self._at(products, (products >= cut) & before)

    def _moved(self, array: FloatArray | IntArray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.rows.device)

    @staticmethod
    def _at(products: torch.Tensor, where: torch.Tensor) -> tuple[IntArray, IntArray, FloatArray]:
        rows, columns = torch.nonzero(where, as_tuple=True)
        return rows.cpu().numpy(), columns.cpu().numpy(), products[rows, columns].cpu().numpy()


def check_full_precision(device: torch.device) -> None:
    """Raises DeviceError if torch would compute float32 products in TF32 or bfloat16, for which `error_bound` does not
    hold."""
    backend = torch.backends.cuda if device.type == "cuda" else torch.backends.mkldnn
    # Newer torch has a setting per backend, which the global one sets too.
    setting = getattr(getattr(backend, "matmul", None), "fp32_precision", None)
    if setting is None:
        setting = "ieee" if torch.get_float32_matmul_precision() == "highest" else "reduced"
    if setting not in ("ieee", "none"):
        raise DeviceError(
            message=f"Matrix products on {device} are set to {setting} precision; exact search needs full float32. "
            'Call torch.set_float32_matmul_precision("highest").'
        )
