"""Safety check of a model file, before a runtime reads it: it may only compute on its own weights.

A runtime would open external data files, allocate what a shape asks for, and run endless loops. A model of `retrieval
export` needs nothing of this. So the relevant protobuf fields are parsed here, without deep recursion, and all else is
refused. Protobuf's own parser creates an object for every part: 60 MB can take 4 GB.
"""

import math
from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10
# Numbers of the fields, as onnx.proto has them.
_MODEL_GRAPH, _MODEL_FUNCTIONS, _MODEL_TRAINING = 7, 25, 20
_GRAPH_NODE, _GRAPH_INITIALIZER, _GRAPH_SPARSE = 1, 5, 15
_NODE_INPUT, _NODE_OUTPUT, _NODE_OP, _NODE_ATTRIBUTE, _NODE_DOMAIN = 1, 2, 4, 5, 7
_ATTRIBUTE_TENSOR, _ATTRIBUTE_TENSORS = 5, 10
_ATTRIBUTE_INTS, _ATTRIBUTE_GRAPHS, _ATTRIBUTE_SPARSE = (3, 8), (6, 11), (22, 23)
_TENSOR_DIMS, _TENSOR_TYPE, _TENSOR_NAME, _TENSOR_RAW, _TENSOR_EXTERNAL, _TENSOR_LOCATION = 1, 2, 8, 9, 13, 14
_TENSOR_VALUES, _TENSOR_INT64 = (4, 5, 6, 7, 10, 11), 7
_INT64 = 7  # the type
_TYPES_BY_BITS = {
    2: (25, 26),
    4: (21, 22, 23),
    8: (2, 3, 9, 17, 18, 19, 20, 24),
    16: (4, 5, 10, 16),
    32: (1, 6, 12),
    64: (7, 11, 13, 14),
    128: (15,),
}
_BITS = {kind: bits for bits, kinds in _TYPES_BY_BITS.items() for kind in kinds}  # of an element
_DOMAINS = (b"", b"ai.onnx")
_CONTROL = (b"If", b"Loop", b"Scan", b"SequenceMap")
_MAKERS = (b"ConstantOfShape", b"Expand", b"Tile", b"Resize", b"Upsample", b"Pad", b"Range", b"Reshape", b"OneHot")
_MAX_FIELDS, _MAX_DIMS, _MAX_SHAPE_VALUES = 1_000_000, 64, 16
_MAX_KEY = 1 << 32
MAX_SHAPE_ELEMENTS = 1 << 31
"""Limit of elements that a constant of the graph may ask an operation for."""


class UnsafeModelError(ValueError):
    """A model that does more than compute, or a file that is not the protobuf of a model."""


_Field = tuple[int, int | memoryview]
"""A field of a message: its number, and its value, a number or a part of the file."""


def check_graph(data: bytes) -> None:
    """Raise UnsafeModelError for a model that reads other files, has control flow, or asks for too much memory."""
    check = _GraphCheck()
    for number, value in check.read_fields(memoryview(data)):
        if number == _MODEL_GRAPH:
            check.check_nodes(_part(number, value))
        elif number == _MODEL_FUNCTIONS:
            raise UnsafeModelError("it has functions of its own, in which anything may be hidden")
        elif number == _MODEL_TRAINING:
            raise UnsafeModelError("it has graphs for training")


class _GraphCheck:
    """Reader of a model's messages, with a limit of fields and numbers: each takes more memory than its bytes."""

    def __init__(self) -> None:
        self._left = _MAX_FIELDS

    def check_nodes(self, graph: memoryview) -> None:
        small: dict[bytes, list[int]] = {}  # constants that may be shapes, by name
        makers: list[tuple[bytes, list[bytes]]] = []  # operations sized by a shape, and inputs
        for number, value in self.read_fields(graph):
            if number == _GRAPH_NODE:
                operation, inputs, outputs, values = self._read_node(_part(number, value))
                if operation in _MAKERS:
                    makers.append((operation, inputs))
                small |= {name: values for name in outputs if values}
            elif number == _GRAPH_INITIALIZER:
                name, values = self._check_tensor(_part(number, value))
                if values:
                    small[name] = values
            elif number == _GRAPH_SPARSE:
                raise UnsafeModelError("it has sparse weights")
        for operation, inputs in makers:
            for name in inputs:
                asked = math.prod(max(1, value) for value in small.get(name, []))
                if asked > MAX_SHAPE_ELEMENTS:
                    raise UnsafeModelError(f"its operation {_show(operation)} would make {asked:,} elements")

    def _read_node(self, message: memoryview) -> tuple[bytes, list[bytes], list[bytes], list[int]]:
        """An operation: name, inputs, outputs, and the values of a constant that may be a shape."""
        texts: dict[int, list[bytes]] = {_NODE_INPUT: [], _NODE_OUTPUT: [], _NODE_OP: [b""], _NODE_DOMAIN: [b""]}
        values: list[int] = []
        for number, value in self.read_fields(message):
            if number in texts:
                texts[number].append(bytes(_part(number, value)))
            elif number == _NODE_ATTRIBUTE:
                for kind, held in self.read_fields(_part(number, value)):
                    if kind in _ATTRIBUTE_GRAPHS:
                        raise UnsafeModelError("it has control flow: an operation holds a graph")
                    if kind in _ATTRIBUTE_SPARSE:
                        raise UnsafeModelError("it has sparse weights")
                    if kind in (_ATTRIBUTE_TENSOR, _ATTRIBUTE_TENSORS):
                        values += self._check_tensor(_part(kind, held))[1]
                    elif kind in _ATTRIBUTE_INTS:
                        values += self._read_numbers(held)
        operation, domain = texts[_NODE_OP][-1], texts[_NODE_DOMAIN][-1]
        if operation in _CONTROL:
            raise UnsafeModelError(f"it has control flow: the operation {operation.decode()}")
        if domain not in _DOMAINS:
            raise UnsafeModelError(
                f"it has an operation outside ONNX's standard domain: {_show(domain)}.{_show(operation)}"
            )
        return operation, texts[_NODE_INPUT], texts[_NODE_OUTPUT], values if operation == b"Constant" else []

    def _check_tensor(self, tensor: memoryview) -> tuple[bytes, list[int]]:
        """The name of a tensor, and its values where it may be a shape."""
        dims: list[int] = []
        listed: list[int] = []
        kind, held, name = 0, 0, b""
        raw: memoryview | None = None
        for number, value in self.read_fields(tensor):
            if number == _TENSOR_DIMS:
                dims += self._read_numbers(value)
            elif number == _TENSOR_TYPE:
                kind = _number(number, value)
            elif number == _TENSOR_NAME:
                name = bytes(_part(number, value))
            elif number == _TENSOR_EXTERNAL or (number == _TENSOR_LOCATION and _number(number, value)):
                raise UnsafeModelError("the data of a tensor lies in another file, which is never read")
            elif number == _TENSOR_RAW:
                raw = _part(number, value)
            elif number in _TENSOR_VALUES:  # an element takes a byte or more
                held += len(value) + 1 if isinstance(value, memoryview) else 8
                if number == _TENSOR_INT64 and held <= 8 * _MAX_SHAPE_VALUES:
                    listed += self._read_numbers(value)
        if len(dims) > _MAX_DIMS or min(dims, default=0) < 0:
            raise UnsafeModelError(f"the tensor {_show(name)} has impossible sizes")
        count = math.prod(dims)
        there = held if raw is None else len(raw)
        if there < (count // 2 if raw is None else (count * _BITS.get(kind, 8) + 7) // 8):
            raise UnsafeModelError(
                f"the tensor {_show(name)} is said to have {count:,} elements, but there are only {there:,} bytes"
            )
        if kind != _INT64 or not 0 < count <= _MAX_SHAPE_VALUES:
            return name, []
        if raw is None:
            return name, listed
        return name, [int.from_bytes(raw[8 * n : 8 * n + 8], "little", signed=True) for n in range(count)]

    def read_fields(self, message: memoryview) -> Iterator[_Field]:
        at, end = 0, len(message)
        while at < end:
            self._count_part()
            key, at = _read_varint(message, at)
            number, kind = key >> 3, key & 7
            if key >= _MAX_KEY:  # of which the runtime would read the lower bits
                raise UnsafeModelError("it is no ONNX file: a field has an impossible number")
            if kind == _VARINT:
                value, at = _read_varint(message, at)
                yield number, value
                continue
            if kind == _BYTES:
                size, at = _read_varint(message, at)
            elif kind in (_FIXED64, _FIXED32):
                size = 8 if kind == _FIXED64 else 4
            else:
                raise UnsafeModelError(f"it is no ONNX file: a field of the kind {kind}")
            if size > end - at or not number:
                raise UnsafeModelError("it is no ONNX file: a field goes beyond its message")
            yield number, message[at : at + size]
            at += size

    def _read_numbers(self, value: int | memoryview) -> list[int]:
        """The numbers of a field that may be packed, as protobuf's int64 has them."""
        if isinstance(value, int):
            return [_sign(value)]
        numbers, at = [], 0
        while at < len(value):
            self._count_part()
            one, at = _read_varint(value, at)
            numbers.append(_sign(one))
        return numbers

    def _count_part(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise UnsafeModelError(f"it has more than {_MAX_FIELDS:,} parts")


def _read_varint(message: memoryview, at: int) -> tuple[int, int]:
    if at < len(message) and message[at] < 0x80:  # as nearly all have, for speed
        return message[at], at + 1
    value = 0
    for place in range(_MAX_VARINT_BYTES):
        if at + place >= len(message):
            break
        byte = message[at + place]
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, at + place + 1
    raise UnsafeModelError("it is no ONNX file: a number has no end")


def _part(number: int, value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise UnsafeModelError(f"it is no ONNX file: the field {number} is a number")
    return value


def _number(number: int, value: int | memoryview) -> int:
    if not isinstance(value, int):
        raise UnsafeModelError(f"it is no ONNX file: the field {number} is not a number")
    return value


def _sign(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def _show(name: bytes) -> str:
    return ascii(name[:100].decode("utf-8", "replace"))[1:-1]
