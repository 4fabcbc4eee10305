"""Protobuf's messages as classes, made from a table: generated code would have to agree with the installed protobuf's
version. Loaded by what speaks gRPC alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, struct_pb2

_Field = descriptor_pb2.FieldDescriptorProto
STRING: Final = _Field.TYPE_STRING
BYTES: Final = _Field.TYPE_BYTES
BOOL: Final = _Field.TYPE_BOOL
INT32: Final = _Field.TYPE_INT32
"""Also what an enum is on the wire."""
INT64: Final = _Field.TYPE_INT64
DOUBLE: Final = _Field.TYPE_DOUBLE
STRUCT: Final = ".google.protobuf.Struct"


@dataclass(frozen=True, slots=True)
class MapOf:
    """From texts to ``kind``."""

    kind: int | str


Kind = int | str | list[str] | MapOf
"""A scalar's type; a message's name, in a list where there may be several of it; a map."""


class Field(NamedTuple):
    name: str
    number: int
    kind: Kind
    oneof: str = ""
    """The group of which at most one field is set."""


Table = Mapping[str, tuple[Field, ...]]
"""By the message's name, its fields."""


def message_classes(package: str, table: Table) -> dict[str, Any]:
    """A class for each message of ``table``."""
    name = f"{package}.proto"
    file = descriptor_pb2.FileDescriptorProto(name=name, package=package, syntax="proto3")
    file.dependency.append(struct_pb2.DESCRIPTOR.name)
    for message, fields in table.items():
        made = file.message_type.add(name=message)
        for one in fields:
            _add(made, one, f".{package}.{message}", package)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(struct_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    found = pool.FindFileByName(name)
    return {
        message: message_factory.GetMessageClass(found.message_types_by_name[message]) for message in table
    }


def _add(made: descriptor_pb2.DescriptorProto, one: Field, path: str, package: str) -> None:
    field = made.field.add(name=one.name, number=one.number, label=_Field.LABEL_OPTIONAL)
    kind = one.kind
    if isinstance(kind, MapOf):
        # A map is a list of entries on the wire (protobuf.dev/programming-guides/proto3, maps).
        entry = made.nested_type.add(name=_camel(one.name) + "Entry")
        entry.options.map_entry = True
        _add(entry, Field("key", 1, STRING), path, package)
        _add(entry, Field("value", 2, kind.kind), path, package)
        kind = [f"{path}.{entry.name}"]
    if isinstance(kind, int):
        field.type = kind
    else:
        if isinstance(kind, list):
            (kind,) = kind
            field.label = _Field.LABEL_REPEATED
        field.type = _Field.TYPE_MESSAGE
        field.type_name = kind if kind.startswith(".") else f".{package}.{kind}"
    if one.oneof:
        names = [group.name for group in made.oneof_decl]
        if one.oneof not in names:
            made.oneof_decl.add(name=one.oneof)
            names.append(one.oneof)
        field.oneof_index = names.index(one.oneof)


def _camel(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))
