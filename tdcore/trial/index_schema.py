"""Comparison of an index file's columns with the columns of the format, and conversion if necessary.

The encoding of texts and the names of list fields may differ from the format. Fields that were added later to
the end of a struct may be missing, and are then null. Pure functions, any thread.
"""

from __future__ import annotations

import pyarrow as pa

from tdcore.errors import RunCorrupt
from tdcore.format import layout

__all__ = ["as_type", "check_schema"]

_good_schema = [pa.schema([])]  # the last one that passed; any thread may replace it
_SHORTEST_STRUCT = 2  # fields that a struct has had from the beginning


def check_schema(schema: pa.Schema, key: str) -> None:
    """Raise RunCorrupt unless each column of the format exists once, with its type. key: the file's key."""
    if schema.equals(_good_schema[0]):
        return  # the same schema as nearly all files of a run
    for field in layout.index_schema():
        at = schema.get_all_field_indices(field.name)
        if len(at) != 1:
            found = "twice" if at else "not there"
            raise RunCorrupt(
                f"{key}: column {field.name!r} is {found}; every index file has each column once"
            )
        got = schema.field(at[0]).type
        if not _same_type(got, field.type):
            raise RunCorrupt(f"{key}: column {field.name!r} has type {got}, expected {field.type}")
    _good_schema[0] = schema


def as_type(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """The column with the type of the format, after check_schema."""
    if pa.types.is_struct(kind) and column.type.num_fields < kind.num_fields:
        return pa.chunked_array([_with_all_fields(chunk, kind) for chunk in column.chunks], kind)
    return column.cast(kind)


def _with_all_fields(struct: pa.StructArray, kind: pa.DataType) -> pa.StructArray:
    fields = [struct.field(at).cast(kind.field(at).type) for at in range(struct.type.num_fields)]
    later = [kind.field(at).type for at in range(len(fields), kind.num_fields)]
    fields += [pa.nulls(len(struct), each) for each in later]
    return pa.StructArray.from_arrays(
        fields, fields=[kind.field(at) for at in range(kind.num_fields)], mask=struct.is_null()
    )


def _same_type(got: pa.DataType, want: pa.DataType) -> bool:
    """Whether two types are equal except for the differences in the docstring of the module."""
    if pa.types.is_dictionary(want):
        value = got.value_type if pa.types.is_dictionary(got) else got
        return bool(pa.types.is_string(value) or pa.types.is_large_string(value))
    if pa.types.is_list(want):
        is_list = pa.types.is_list(got) or pa.types.is_large_list(got)
        return bool(is_list and _same_type(got.value_type, want.value_type))
    if pa.types.is_struct(want):
        return bool(
            pa.types.is_struct(got)
            and _SHORTEST_STRUCT <= got.num_fields <= want.num_fields
            and all(_same_type(got.field(at).type, want.field(at).type) for at in range(got.num_fields))
        )
    return bool(got.equals(want))
