"""Converts GGUF weights to a stateful model for OpenVINO, exactly.

    python convert.py WEIGHTS.gguf FOLDER

OpenVINO GenAI reads GGUF files and builds the model. It keeps the weights as they are, except that it rounds the
zero points of Q4_1, which are no whole numbers there. These are put right here, and all weights are compared with
those of the file before anything is written to FOLDER. Progress goes to stderr; when the weights can't be taken
over, the last line on stdout says why, and the exit code is 3.

Blocks are of 32 weights, as ggml-common.h of llama.cpp has them:
  Q8_0: scale d (f16), 32 times q (i8);                    w = d q
  Q4_0: scale d (f16), 16 bytes of two q each (u4);        w = d (q - 8)
  Q4_1: d (f16), minimum m (f16), 16 bytes of two q (u4);  w = d q + m = d (q - (-m / d))
The low halves of the 16 bytes are the first 16 weights, the high halves the last 16.
"""

import os
import sys
import tempfile
from pathlib import Path

REFUSED = 3
BLOCK = 32

# The half-precision formats, whose numbers the graph has as they are.
PLAIN = ("F32", "F16")
QUANTIZED = ("Q8_0", "Q4_0", "Q4_1")


def refuse(reason):
    """Ends the program with a sentence."""
    print(reason)
    sys.exit(REFUSED)


try:
    import gguf
    import numpy as np
    import openvino
    import openvino_genai
except ImportError as error:
    refuse(f"the Python package {error.name} is missing: pip install openvino-genai gguf")


def say(text):
    print(text, file=sys.stderr, flush=True)


def read_tensors(weights):
    """The file's tensors; refuses those of types that can't be taken over."""
    tensors = gguf.GGUFReader(weights).tensors
    for tensor in tensors:
        kind = tensor.tensor_type.name
        if kind not in PLAIN + QUANTIZED:
            refuse(
                f"the tensor {tensor.name} is {kind}, which can't be taken over exactly (F32, F16, Q8_0, Q4_0 and "
                "Q4_1 can): requantise the file, for example to Q8_0 with llama-quantize"
            )
    return tensors


def halves(blocks, at):
    """The f16 at that byte of each block."""
    return np.ascontiguousarray(blocks[..., at : at + 2]).view(np.float16)[..., 0]


def rows_of(tensor):
    """Of a quantised tensor: for each row its q as the graph has them, in bytes, the scale and the zero point of
    each block (both in double precision, so that they are exact or nearly so)."""
    kind = tensor.tensor_type.name
    width = int(tensor.shape[0])
    blocks = np.asarray(tensor.data).view(np.uint8).reshape(-1, width // BLOCK, tensor.data.nbytes // (tensor.n_elements // BLOCK))
    scales = halves(blocks, 0).astype(np.float64)
    if kind == "Q8_0":
        quants = blocks[..., 2:] ^ np.uint8(0x80)
        return quants.reshape(len(blocks), -1), scales, np.full(scales.shape, 128.0)
    first = 2 if kind == "Q4_0" else 4
    low, high = blocks[..., first:] & 15, blocks[..., first:] >> 4
    quants = np.concatenate([low, high], axis=-1)
    packed = (quants[..., 0::2] | quants[..., 1::2] << 4).reshape(len(blocks), -1)
    if kind == "Q4_0":
        return packed, scales, np.full(scales.shape, 8.0)
    minima = halves(blocks, 2).astype(np.float64)
    # Where the scale is 0, all weights of the block are its minimum, and all q are 0.
    flat = scales == 0
    zeros = np.where(flat, -1.0, -minima / np.where(flat, 1.0, scales))
    return packed, np.where(flat, minima, scales), zeros


def index(tensors):
    """From a row's bytes to its scales and zero points. The importer puts the rows of some tensors into another
    order, so tensors as a whole can't be looked up."""
    found = {}
    for tensor in tensors:
        if tensor.tensor_type.name in QUANTIZED:
            packed, scales, zeros = rows_of(tensor)
            for row, scale, zero in zip(packed, scales, zeros):
                found.setdefault(row.tobytes(), []).append((scale, zero, tensor.name))
    return found


def source(node, number):
    return node.input(number).get_source_output().get_node()


def constant(node):
    """The constant of an input, which may be converted."""
    node = source(node, 0) if node.get_type_name() == "Convert" else node
    return node if node.get_type_name() == "Constant" else None


def decompressions(model):
    """What makes weights of their compressed form: ((q - zero point) * scale)."""
    for node in model.get_ordered_ops():
        if node.get_type_name() != "Subtract":
            continue
        quants, zeros = constant(source(node, 0)), constant(source(node, 1))
        if quants is None or quants.get_element_type().get_type_name() not in ("u4", "u8"):
            continue
        (user,) = node.output(0).get_target_inputs()
        multiply = user.get_node()
        scales = constant(source(multiply, 1))
        if zeros is None or scales is None or multiply.get_type_name() != "Multiply":
            refuse(f"the importer has built {node.get_friendly_name()} in a way that isn't known here")
        yield node, quants, multiply, scales


def shaped(data, shape):
    """A constant of f16 numbers."""
    return openvino.opset13.constant(data.reshape(shape).astype(np.float16), dtype=np.float16)


def put_right(model, rows):
    """Gives each block the scale and the zero point that it has in the file. Gives the names of the tensors that
    were met, and the largest error of a weight as a share of its block's scale."""
    met, worst = set(), 0.0
    for node, quants, multiply, scales in decompressions(model):
        height = quants.get_output_shape(0)[0]
        packed = np.asarray(quants.data).view(np.uint8).reshape(height, -1)
        found = []
        for at, row in enumerate(packed):
            candidates = rows.get(row.tobytes())
            if not candidates:
                refuse(f"row {at} of {quants.get_friendly_name()} is not in the file: the importer has changed it")
            scale_there = np.asarray(scales.data)[at].ravel()
            found.append(nearest(candidates, scale_there))
        wanted = np.stack([scale for scale, _, _ in found])
        zeros = np.stack([zero for _, zero, _ in found])
        met.update(name for _, _, name in found)
        shape = scales.get_output_shape(0)
        if not np.array_equal(wanted.reshape(shape), np.asarray(scales.data).astype(np.float64)):
            multiply.input(1).replace_source_output(shaped(wanted, shape).output(0))
        rounded = zeros.astype(np.float16).astype(np.float64)
        if not np.isfinite(rounded).all() or not np.isfinite(wanted.astype(np.float16)).all():
            refuse(f"a zero point of {found[0][2]} is too large for half precision")
        worst = max(worst, float(np.abs(rounded - zeros).max()))
        whole = np.array_equal(zeros, np.round(zeros)) and zeros.min() >= 0
        if not whole or not np.array_equal(zeros, zero_points(node, height)):
            node.input(1).replace_source_output(shaped(zeros, shape).output(0))
    return met, worst


def zero_points(node, height):
    """The zero points as the graph has them: bytes, or halves of bytes."""
    zeros = constant(source(node, 1))
    data = np.asarray(zeros.data).view(np.uint8).ravel()
    if zeros.get_element_type().get_type_name() == "u4":
        data = np.stack([data & 15, data >> 4], axis=-1).ravel()
    return data.reshape(height, -1).astype(np.float64)


def nearest(candidates, scales):
    """Of rows with the same q, the one with these scales."""
    return min(candidates, key=lambda candidate: float(np.abs(candidate[0] - scales).max()))


def plain_constants(model):
    """All numbers of f16 and f32 constants, by their count."""
    found = {}
    for node in model.get_ordered_ops():
        if node.get_type_name() == "Constant" and node.get_element_type().get_type_name() in ("f16", "f32"):
            data = np.asarray(node.data).astype(np.float32).ravel()
            if data.size > 1:
                found.setdefault(data.size, []).append(data)
    return found


def check_plain(model, tensors, met):
    """Refuses a graph that lacks a tensor of the file."""
    constants = plain_constants(model)
    for tensor in tensors:
        if tensor.name in met or tensor.name == "rope_freqs.weight":
            continue
        if tensor.tensor_type.name in QUANTIZED:
            refuse(f"the tensor {tensor.name} is not in the graph that the importer has built")
        data = np.asarray(tensor.data).astype(np.float32).ravel()
        same = (np.array_equal(np.sort(data), np.sort(other)) for other in constants.get(data.size, []))
        if not any(same):
            refuse(f"the importer has changed the tensor {tensor.name}")


def convert(weights, folder):
    tensors = read_tensors(weights)
    say("importing the weights")
    with tempfile.TemporaryDirectory(dir=folder) as aside:
        link = Path(aside) / "model.gguf"
        os.symlink(weights, link)
        try:
            openvino_genai.LLMPipeline(str(link), "CPU", enable_save_ov_model=True)
        except Exception as error:  # Whatever the importer throws.
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            refuse("OpenVINO's importer refuses the weights: " + (lines[-1] if lines else type(error).__name__))
        model = openvino.Core().read_model(Path(aside) / "openvino_model.xml")
        say("putting the weights right")
        met, worst = put_right(model, index(tensors))
        check_plain(model, tensors, met)
        say(f"{len(tensors)} tensors are as in the file; zero points differ by up to {worst:.4f} steps")
        openvino.save_model(model, Path(aside) / "exact.xml", compress_to_fp16=False)
        for kind in ("bin", "xml"):
            os.replace(Path(aside) / f"exact.{kind}", folder / f"openvino_model.{kind}")


if __name__ == "__main__":
    convert(Path(sys.argv[1]).resolve(), Path(sys.argv[2]))
