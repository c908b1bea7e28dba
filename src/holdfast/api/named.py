"""Things with a name, in their order: a tuple that also finds one by its name."""

from __future__ import annotations

from typing import Any, Generic, Protocol, SupportsIndex, TypeVar, overload


class HasName(Protocol):
    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=HasName, covariant=True)


class Named(tuple[T, ...], Generic[T]):
    """
    >>> from dataclasses import make_dataclass
    >>> Pet = make_dataclass("Pet", ["name"])
    >>> Named([Pet("cat"), Pet("dog")])["dog"]
    Pet(name='dog')
    """

    __slots__ = ()

    @overload
    def __getitem__(self, key: SupportsIndex) -> T: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[T, ...]: ...
    @overload
    def __getitem__(self, key: str) -> T: ...
    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return super().__getitem__(key)
        for one in self:
            if one.name == key:
                return one
        known = ", ".join(repr(one.name) for one in self) or "none"
        raise KeyError(f"{key!r}: there are {known}")
