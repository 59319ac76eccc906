"""Forged models with a right checksum: what does more than compute is refused before the runtime sees it."""

import contextlib
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from index.errors import ModelFileError
from index.model.checksum import CHECKSUM_KEY, EMPTY_CHECKSUM, read_model_file
from index.model.embedder import Embedder
from index.model.graph import UnsafeModelError, check_graph
from tests.models import write_model

Forge = Callable[[onnx.ModelProto], None]


def add_node(model: onnx.ModelProto, *arguments: object, **options: object) -> onnx.NodeProto:
    node = helper.make_node(*arguments, **options)
    model.graph.node.insert(0, node)
    return node


def make_branch() -> onnx.GraphProto:
    value = helper.make_tensor_value_info("v", TensorProto.FLOAT, [])
    constant = helper.make_node("Constant", [], ["v"], value=numpy_helper.from_array(np.float32(1)))
    return helper.make_graph([constant], "branch", [], [value])


def lead_outside(model: onnx.ModelProto) -> None:
    [tensor] = [one for one in model.graph.initializer if one.name == "linear"]
    onnx.external_data_helper.set_external_data(tensor, location="../../../../etc/passwd", offset=0, length=100)
    tensor.ClearField("raw_data")


def lead_outside_in_a_constant(model: onnx.ModelProto) -> None:
    tensor = numpy_helper.from_array(np.zeros(4, dtype=np.float32), "t")
    onnx.external_data_helper.set_external_data(tensor, location="/dev/zero")
    add_node(model, "Constant", [], ["unused"], value=tensor)


def branch(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    add_node(model, "If", ["yes"], ["w"], then_branch=make_branch(), else_branch=make_branch())


def loop(model: onnx.ModelProto) -> None:
    add_node(model, "Loop", ["", ""], ["w"], body=make_branch())


def scan(model: onnx.ModelProto) -> None:
    add_node(model, "Scan", ["images"], ["w"], body=make_branch(), num_scan_inputs=1)


def hide_a_graph(model: onnx.ModelProto) -> None:
    add_node(model, "Identity", ["images"], ["w"], body=make_branch())


def hide_a_function(model: onnx.ModelProto) -> None:
    body = [helper.make_node("Loop", ["", ""], ["w"], body=make_branch())]
    function = helper.make_function("mine", "F", ["x"], ["w"], body, [helper.make_opsetid("", 17)])
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("mine", 1))


def name_a_domain(model: onnx.ModelProto) -> None:
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    add_node(model, "Gelu", ["images"], ["w"], domain="com.microsoft")


def announce_much(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(TensorProto(name="much", data_type=TensorProto.FLOAT, dims=[1 << 40, 1 << 20]))


def announce_more_than_there_is(model: onnx.ModelProto) -> None:
    [tensor] = [one for one in model.graph.initializer if one.name == "linear"]
    tensor.dims[0] += 1


def announce_less_than_nothing(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(TensorProto(name="t", data_type=TensorProto.FLOAT, dims=[-1, -1]))


def make_much(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.array([1 << 20, 1 << 18]), "shape"))
    add_node(model, "ConstantOfShape", ["shape"], ["w"])


def make_much_of_a_constant(model: onnx.ModelProto) -> None:
    add_node(model, "Expand", ["images", "shape"], ["w"])
    add_node(model, "Constant", [], ["shape"], value_ints=[1, 1 << 40, 1, 1])


def train(model: onnx.ModelProto) -> None:
    model.training_info.add().algorithm.CopyFrom(make_branch())


def weigh_sparsely(model: onnx.ModelProto) -> None:
    model.graph.sparse_initializer.add().dims.append(1 << 40)


FORGERIES: dict[Forge, str] = {
    lead_outside: "lies in another file",
    lead_outside_in_a_constant: "lies in another file",
    branch: "control flow",
    loop: "control flow",
    scan: "control flow",
    hide_a_graph: "control flow",
    hide_a_function: "functions of its own",
    name_a_domain: r"outside ONNX's standard domain: com\.microsoft\.Gelu",
    announce_much: "is said to have",
    announce_more_than_there_is: "is said to have",
    announce_less_than_nothing: "has impossible sizes",
    make_much: "ConstantOfShape would make",
    make_much_of_a_constant: "Expand would make",
    train: "graphs for training",
    weigh_sparsely: "sparse weights",
}


def rewrite_model(model: Path, out: Path, forge: Forge) -> Path:
    proto = onnx.load(model)
    forge(proto)
    for entry in proto.metadata_props:  # as if it had come from `retrieval export`
        at = entry.value.index(f'"{CHECKSUM_KEY}": "') + len(f'"{CHECKSUM_KEY}": "')
        entry.value = entry.value[:at] + EMPTY_CHECKSUM + entry.value[at + len(EMPTY_CHECKSUM) :]
    return write_model(proto, out)


@pytest.mark.parametrize("forge", FORGERIES, ids=lambda forge: forge.__name__)
def test_a_forged_model_is_refused_by_what_it_does(forge: Forge, tiny_model: Path, tmp_path: Path) -> None:
    forged = rewrite_model(tiny_model, tmp_path / "forged.onnx", forge)
    read_model_file(forged)  # the checksum is right
    with pytest.raises(ModelFileError, match=FORGERIES[forge]):
        Embedder(forged)


def test_a_model_with_harmless_constants_is_opened(tiny_model: Path, tmp_path: Path) -> None:
    def add_constants(model: onnx.ModelProto) -> None:
        add_node(model, "Constant", [], ["indices"], value_ints=list(range(1, 2000)))
        model.graph.initializer.append(numpy_helper.from_array(np.arange(16) + 900, "positions"))
        model.graph.initializer.append(helper.make_tensor("halves", TensorProto.FLOAT16, [3], [1.0, 2.0, 3.0]))
        model.graph.initializer.append(helper.make_tensor("bits", TensorProto.INT4, [3], [1, 2, 3]))
        model.graph.initializer.append(helper.make_tensor("names", TensorProto.STRING, [3], [b"", b"", b""]))
        model.graph.initializer.append(numpy_helper.from_array(np.array([2**63 - 1]), "the end"))

    model = onnx.load(rewrite_model(tiny_model, tmp_path / "more.onnx", add_constants))
    check_graph(model.SerializeToString())
    assert Embedder(rewrite_model(tiny_model, tmp_path / "same.onnx", lambda _: None)).contract.embedding_dim == 16


def look_at(content: bytes) -> None:
    with contextlib.suppress(UnsafeModelError):
        check_graph(content)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_model_or_refused(content: bytes) -> None:
    look_at(content)


def test_a_damaged_model_is_looked_at_in_a_bounded_time(tiny_model: Path) -> None:
    content, chance = tiny_model.read_bytes(), random.Random(0)
    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(chance.randrange(1, 5)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        look_at(bytes(damaged))


def test_a_field_whose_number_only_the_runtime_would_understand_is_refused() -> None:
    graph = bytes([0x80 | 0x3A, 0x80, 0x80, 0x80, 0x80, 0x01, 0x00])  # 7, and a bit above the 32 that count
    with pytest.raises(UnsafeModelError, match="an impossible number"):
        check_graph(graph)


@pytest.mark.parametrize("part", ["inputs of a node", "numbers of an attribute"])
def test_a_model_of_very_many_tiny_parts_is_refused(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("index.model.graph._MAX_FIELDS", 10_000)
    node = b"\x0a\x00" * 15_000 if part == "inputs of a node" else _write_part(5, _write_part(8, bytes(15_000)))
    with pytest.raises(UnsafeModelError, match="more than 10,000 parts"):
        check_graph(_write_part(7, _write_part(1, node)))


def _write_part(number: int, content: bytes) -> bytes:
    size, written = len(content), bytearray([number << 3 | 2])
    while size > 0x7F:
        written.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes(written) + bytes([size]) + content
