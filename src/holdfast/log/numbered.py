"""Small files of a store that are numbered without gaps, and of which the newest counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from holdfast.errors import CorruptionError, StoreError
from holdfast.log.store import Store


class Record(Protocol):
    @property
    def file(self) -> str: ...
    def to_bytes(self) -> bytes: ...


R = TypeVar("R", bound=Record)


class Numbered(Generic[R]):
    """A folder of files numbered without gaps, of which the newest counts."""

    def __init__(self, store: Store, file_of: Callable[[int], str], read: Callable[[bytes, str], R]) -> None:
        self._store = store
        self._file_of = file_of
        self._read = read
        self._folder, _, first = file_of(0).partition("/")
        self._suffix = first.lstrip("0")
        self._newest: tuple[int, R] | None = None

    def numbers(self) -> list[int]:
        found = (name.removesuffix(self._suffix) for name in self._store.list(self._folder))
        return sorted(int(name) for name in found if name.isdecimal())

    def get(self, number: int) -> R | None:
        file = self._file_of(number)
        return read_record(self._store, file, self._read)

    def put(self, number: int, record: R) -> tuple[R, bool]:
        """The record that has the number from now on, and whether it is ours."""
        won = self._store.put_if_absent(record.file, record.to_bytes())
        found = record if won else self.get(number)
        if found is None:
            raise StoreError(f"{record.file} was there and is gone: somebody is deleting files of {self._store.uri}")
        if self._newest is None or number >= self._newest[0]:
            self._newest = (number, found)
        return found, won

    def newest(self) -> R | None:
        if self._newest is None:
            numbers = self.numbers()
            record = self.get(numbers[-1]) if numbers else None
            if record is None:
                return None
            self._newest = (numbers[-1], record)
        while (later := self.get(self._newest[0] + 1)) is not None:
            self._newest = (self._newest[0] + 1, later)
        return self._newest[1]


def read_record(store: Store, file: str, parse: Callable[[bytes, str], R]) -> R | None:
    data = store.read_if_present(file)
    if data is None:
        return None
    record = parse(data, f"{store.uri}/{file}")
    if record.file != file:
        raise CorruptionError(f"{store.uri}/{file} holds what was written as {record.file}")
    return record
