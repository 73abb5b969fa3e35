"""Thrift's compact protocol, as far as Parquet's page headers use it."""

from typing import Any


class CompactReader:
    """Thrift's compact protocol, as far as a page header needs it."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._place = 0

    def struct(self) -> tuple[dict[int, Any], int]:
        """Fields by number, and the bytes taken up to here."""
        fields: dict[int, Any] = {}
        number = 0
        while (head := self._byte()) != 0:
            number = number + (head >> 4) if head >> 4 else self._zigzag()
            fields[number] = self._value(head & 0x0F)
        return fields, self._place

    def _byte(self) -> int:
        self._place += 1
        return self._data[self._place - 1]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise TypeError("a number of more than 64 bits")

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _skip(self, size: int) -> None:
        if self._place + size > len(self._data):
            raise IndexError("cut short")
        self._place += size

    def _value(self, kind: int) -> Any:
        if kind in (1, 2):
            return kind == 1
        if kind == 3:
            return self._byte()
        if kind in (4, 5, 6):
            return self._zigzag()
        if kind == 7:
            return self._skip(8)
        if kind == 8:
            return self._skip(self._varint())
        if kind == 12:
            return self.struct()[0]
        raise TypeError(f"a page header has no field of type {kind}")
