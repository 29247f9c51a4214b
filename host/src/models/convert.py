#!/usr/bin/env python3
"""Makes an OpenVINO model of a GGUF file, with exactly the weights of that file.

    python convert.py WEIGHTS.gguf OUT_FOLDER      (or: python - ... < convert.py)

OUT_FOLDER/openvino_model.xml and .bin are a stateful causal language model: inputs
input_ids, attention_mask, position_ids and beam_idx, output logits, the keys and values
kept as state. Progress goes to stderr. Exit code 0 means that both files were written and
that every weight in them was compared with the GGUF; with exit code 3 nothing was written
and the last line of stdout is one sentence that says why.

The graph comes from the GGUF importer of openvino-genai, which isn't exact everywhere:

* Q4_1. A weight is d*q + m (f16 d, f16 m, q in 0..15); a decompression in OpenVINO is
  (q - z)*d, so z = -m/d, and the importer rounds z to a u4. Here z becomes an f32 constant
  (and the arithmetic f32: Convert, Subtract, Multiply). Measured with SmolLM2-135M on the
  CPU plugin: the matrix multiplications still take the weights as u4, in the same memory,
  and the largest error of a weight is 5e-7, as executed, too; an f16 z made it 3e-3.
* F16 files. The importer stores every f32 constant as f16: norms, biases, the epsilon and
  the frequencies of the position embedding. They are put back.
* rope_freqs.weight (Llama 3.1 and later) is ignored; the frequencies are divided by it here.
* Biases of the query and the key in the architecture llama keep their order, although the
  rows of the weights are reordered; here they follow their rows.

F16, Q8_0 and Q4_0 are taken over as they are. The importer takes F32 only for vectors,
can't read BF16, and rounds the K quants: those are refused.

Where the format facts come from: the GGUF blocks are the structs block_q4_0, block_q4_1 and
block_q8_0 of llama.cpp's ggml-common.h (32 weights a block; d, then m for Q4_1, then the
codes; of 4-bit codes the low nibbles are the first 16 weights, the high nibbles the last
16). A u4 constant of OpenVINO has its even elements in the low nibbles. The row order of
attn_q and attn_k is that of llama.cpp's convert_hf_to_gguf.py (see importer_order).
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from importlib.util import find_spec
from pathlib import Path

os.environ["CI"] = "true"  # without it openvino's telemetry may wait for a network

REFUSED = 3
MATRIX_TYPES = ("F16", "Q8_0", "Q4_0", "Q4_1")
VECTOR_TYPES = ("F32", "F16")
# The importer runs in a process of its own: it is native code that may crash, and it only
# writes its model beside the GGUF, which is why that is linked into a temporary folder.
IMPORT = """
import sys, openvino_genai
openvino_genai.LLMPipeline(sys.argv[1], "CPU", enable_save_ov_model=True)
"""


class Refusal(Exception):
    """Why the file can't be converted exactly, as one sentence for the user."""


try:
    import gguf
    import numpy as np
    import openvino as ov
    from openvino import opset13 as ops

    if find_spec("openvino_genai") is None:
        raise ModuleNotFoundError("No module named 'openvino_genai'")
except ImportError as error:
    print(
        "The conversion to OpenVINO needs three Python packages"
        f" (python -m pip install openvino openvino-genai gguf): {error}."
    )
    sys.exit(REFUSED)


def say(text):
    """Reports progress."""
    print(text, file=sys.stderr, flush=True)


# ---- The GGUF ----------------------------------------------------------------------------


def read_gguf(path):
    """The metadata (a function from key to value) and the tensors by name."""
    try:
        reader = gguf.GGUFReader(path)
    except (OSError, ValueError, IndexError, KeyError) as error:
        raise Refusal(f"{path} can't be read as a GGUF file: {one_line(error)}.") from error

    def meta(key, default=None):
        field = reader.get_field(key)
        return default if field is None else field.contents()

    return meta, {tensor.name: tensor for tensor in reader.tensors}


def check_types(tensors):
    """Refuses a tensor of a type that the importer can't take over exactly."""
    for tensor in tensors.values():
        kind = tensor.tensor_type.name
        allowed = VECTOR_TYPES if len(tensor.shape) == 1 else MATRIX_TYPES
        if kind not in allowed:
            raise Refusal(
                f"The tensor {tensor.name} has the type {kind}, which OpenVINO's GGUF importer"
                " doesn't take over exactly: requantise the file to Q8_0 with llama-quantize."
            )


def importer_order(name, rows, arch, meta):
    """The GGUF row of each row in the graph.

    For the architecture llama convert_hf_to_gguf.py interleaves, in every head of the query
    and the key, the two halves that the position embedding rotates into each other, and the
    importer, whose graph rotates halves, has to undo that; all else keeps its order. No
    other order is accepted, as it would be a different model.
    """
    order = np.arange(rows)
    if arch != "llama" or not name.endswith(
        ("attn_q.weight", "attn_k.weight", "attn_q.bias", "attn_k.bias")
    ):
        return order
    heads = meta("llama.attention.head_count")
    if ".attn_k." in name:
        heads = meta("llama.attention.head_count_kv", heads)
    if not isinstance(heads, int) or heads == 0 or rows % (2 * heads):
        raise Refusal(f"The rows of {name} can't be divided among the attention heads.")
    return order.reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)


def blocks_of(tensor):
    """The d, m and codes of a quantised matrix, each as (rows, blocks, 1 or 32).

    m is None where there's none. The codes of Q8_0, which are signed, get 128 added, as the
    importer does.
    """
    kind = tensor.tensor_type.name
    head, size = {"Q8_0": (2, 34), "Q4_0": (2, 18), "Q4_1": (4, 20)}[kind]
    raw = tensor.data.reshape(tensor.data.shape[0], -1, size)
    floats = np.ascontiguousarray(raw[..., :head]).view(np.float16)
    codes = raw[..., head:]
    if kind == "Q8_0":
        codes = codes ^ np.uint8(0x80)
    else:
        codes = np.concatenate([codes & 15, codes >> 4], axis=-1)
    return floats[..., :1], floats[..., 1:] if head == 4 else None, codes


def dequantised(tensor, order):
    """The f32 values of a tensor, its rows in the graph's order."""
    if len(tensor.shape) == 1:
        return np.asarray(tensor.data, dtype=np.float32)[order]
    return gguf.quants.dequantize(tensor.data[order], tensor.tensor_type)


def frequencies(arch, meta, tensors):
    """The position embedding's frequencies, base^(-2i/size), in float64."""
    scaling = meta(f"{arch}.rope.scaling.type", "none")
    if scaling != "none":
        raise Refusal(f"OpenVINO's GGUF importer doesn't do the rope scaling {scaling!r}.")
    size = meta(f"{arch}.attention.key_length") or (
        meta(f"{arch}.embedding_length") // meta(f"{arch}.attention.head_count")
    )
    if meta(f"{arch}.rope.dimension_count", size) != size:
        raise Refusal("OpenVINO's GGUF importer only rotates whole heads, unlike this model.")
    base = meta(f"{arch}.rope.freq_base", 10000.0)
    table = float(base) ** (-np.arange(0, size, 2, dtype=np.float64) / size)
    if "rope_freqs.weight" in tensors:
        table /= np.asarray(tensors["rope_freqs.weight"].data, dtype=np.float64)
    return table


# ---- The graph ---------------------------------------------------------------------------


def constant_roots(model):
    """The float outputs that depend on constants only and that something else uses.

    These are the weights, each as it enters the computation (after its decompression), and
    the other constants of the formulas.
    """
    constant, roots = set(), {}
    for node in model.get_ordered_ops():
        name = node.get_friendly_name()
        sources = [port.get_source_output().get_node() for port in node.inputs()]
        kind = node.get_type_name()
        if kind == "Constant" or (
            sources
            and kind not in ("ReadValue", "Assign", "Result")
            and all(source.get_friendly_name() in constant for source in sources)
        ):
            constant.add(name)
            continue
        for source in sources:
            if source.get_friendly_name() in constant and source.get_element_type().is_real():
                roots[source.get_friendly_name()] = source
    return list(roots.values())


def leaves(node):
    """The constants that a constant output is computed from."""
    if node.get_type_name() == "Constant":
        return [node]
    return [leaf for port in node.inputs() for leaf in leaves(port.get_source_output().get_node())]


def is_type(node, *names):
    """Whether the elements of a node have one of the types."""
    return node.get_element_type().to_string() in names


def constant_data(node):
    """The elements of a constant."""
    if not is_type(node, "u4"):
        return node.get_data()
    packed = node.get_data().reshape(-1)
    codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(-1)
    return codes[: np.prod(node.shape, dtype=int)].reshape(node.shape)


def evaluate(node):
    """The values of a constant output, computed in f32.

    f32, whatever the graph says: the CPU plugin decompresses in f32, f16 products included
    (with f32 as inference precision).
    """
    kind = node.get_type_name()
    if kind == "Constant":
        data = constant_data(node)
        return data.astype(np.float32) if node.get_element_type() != ov.Type.i64 else data
    values = [evaluate(port.get_source_output().get_node()) for port in node.inputs()]
    match kind:
        case "Convert":
            return values[0]
        case "Subtract":
            return values[0] - values[1]
        case "Multiply":
            return values[0] * values[1]
        case "Reshape":
            return values[0].reshape(tuple(node.shape))
    raise Refusal(f"OpenVINO's GGUF importer made a weight by {kind}, which isn't known here.")


def use_instead(old, new, name):
    """Lets all users of one node use another, which gets the name."""
    for port in list(old.output(0).get_target_inputs()):
        port.replace_source_output(new.output(0))
    new.set_friendly_name(name)


# ---- Which tensor a weight is ------------------------------------------------------------


def first_row_of(tensor):
    """What identifies a tensor: shape, and its first row as the importer keeps it.

    The first row stays the first in every order of rows. Float rows are compared as f16,
    which the importer may have rounded them to.
    """
    shape = tuple(int(size) for size in reversed(tensor.shape))
    if tensor.tensor_type.name in ("F32", "F16"):
        row = tensor.data if len(shape) == 1 else tensor.data[0]
        return shape, as_f16(row).tobytes()
    head = gguf.ReaderTensor(**{**tensor._asdict(), "data": tensor.data[:1]})
    d, _, codes = blocks_of(head)
    return shape, codes.tobytes() + d.tobytes()


def as_f16(values):
    """Rounds to f16; what is too large becomes infinite."""
    with np.errstate(over="ignore"):
        return np.asarray(values).astype(np.float16)


def parts_of(root):
    """The codes and scales of a weight in the graph, or None twice if it isn't quantised."""
    constants = leaves(root)
    codes = [leaf for leaf in constants if is_type(leaf, "u4", "u8")]
    scales = [leaf for leaf in constants if is_type(leaf, "f16")]
    if not codes:
        return None, None
    if len(scales) != 1:
        raise Refusal("OpenVINO's GGUF importer made a decompression that isn't known here.")
    return max(codes, key=lambda leaf: np.prod(leaf.shape, dtype=int)), scales[0]


def first_row_in(root):
    """The same as first_row_of, of a weight in the graph."""
    codes, scales = parts_of(root)
    shape = tuple(size for size in root.shape)
    if codes is None:
        if shape.count(1) >= len(shape) - 1:  # a vector, which the graph has as (1, 1, n)
            shape = (int(np.prod(shape)),)
        row = evaluate(root).reshape(shape)
        return shape, as_f16(row if len(shape) == 1 else row[0]).tobytes()
    per_row = scales.get_data().reshape(shape[0], -1)
    return shape, first_codes(codes, shape[1]) + per_row[0].tobytes()


def first_codes(codes, columns):
    """The codes of the first row, without unpacking all."""
    if is_type(codes, "u8"):
        return codes.get_data().reshape(-1)[:columns].tobytes()
    packed = codes.get_data().reshape(-1)[: columns // 2]
    return np.stack([packed & 15, packed >> 4], axis=-1).tobytes()


def same_parts(root, tensor, order):
    """Whether a weight of the graph has the codes and scales (or floats) of a tensor."""
    codes, scales = parts_of(root)
    if codes is None:
        mine, theirs = evaluate(root), dequantised(tensor, order)
        return np.array_equal(as_f16(mine.reshape(theirs.shape)), as_f16(theirs))
    d, _, their_codes = blocks_of(tensor)
    return np.array_equal(
        scales.get_data().reshape(d.shape).view(np.uint16), d[order].view(np.uint16)
    ) and np.array_equal(constant_data(codes).reshape(their_codes.shape), their_codes[order])


def assign(roots, tensors, arch, meta):
    """Pairs every weight of the graph with its tensor: name -> (root, the right order).

    A bias may still have the GGUF's order; make_exact replaces it then.
    """
    by_row = {}
    for name, tensor in tensors.items():
        by_row.setdefault(first_row_of(tensor), []).append(name)
    pairs = {}
    for root in roots:
        fits = []
        for name in by_row.get(first_row_in(root), []):
            if name in pairs:
                continue
            order = importer_order(name, int(tensors[name].shape[-1]), arch, meta)
            orders = [order, np.sort(order)] if name.endswith(".bias") else [order]
            if any(same_parts(root, tensors[name], each) for each in orders):
                fits.append((name, order))
        if not fits:
            raise Refusal(
                "OpenVINO's GGUF importer made a weight that isn't in the GGUF, of the shape"
                f" {list(root.shape)}."
            )
        name, order = fits[0]
        mine = dequantised(tensors[name], order)
        for other, its_order in fits[1:]:
            if not np.array_equal(mine, dequantised(tensors[other], its_order)):
                raise Refusal(f"The tensors {name} and {other} are too alike to be told apart.")
        pairs[name] = root, order
    return pairs


def check_all_used(pairs, tensors):
    """Refuses if a tensor of the GGUF has no place in the graph.

    A norm of ones only may be missing: the importer leaves that product out.
    """
    for name, tensor in tensors.items():
        if name in pairs:
            continue
        if len(tensor.shape) == 1 and name.endswith("norm.weight") and np.all(tensor.data == 1):
            continue
        raise Refusal(f"OpenVINO's GGUF importer doesn't use the tensor {name} as it is.")


# ---- Making it exact ---------------------------------------------------------------------


def scale_and_zero_point(name, tensor, order):
    """The f16 s and f32 z of a Q4_1 tensor with (q - z)*s = d*q + m."""
    d, m, codes = (part[order] for part in blocks_of(tensor))
    flat = d == 0
    # A block with d = 0 is constant; llama-quantize gives it one code, k: (k - (k-1))*m = m.
    if np.any(flat & (m != 0) & (codes != codes[..., :1])):
        raise Refusal(f"The tensor {name} has a block with d = 0 and several codes.")
    with np.errstate(divide="ignore", invalid="ignore"):
        zero = -m.astype(np.float64) / d.astype(np.float64)
    zero = np.where(flat, codes[..., :1].astype(np.float64) - 1, zero)
    return np.where(flat, m, d), zero.astype(np.float32)


def make_q4_1_exact(root, name, tensor, order):
    """Rebuilds a decompression in f32 with an exact zero point, and returns its output."""
    codes, _ = parts_of(root)
    scale, zero = scale_and_zero_point(name, tensor, order)
    shifted = ops.subtract(ops.convert(codes, ov.Type.f32), ov.op.Constant(zero))
    scaled = ops.multiply(shifted, ops.convert(ov.op.Constant(scale), ov.Type.f32))
    return ops.reshape(scaled, np.array(list(root.shape), dtype=np.int64), False)


def make_exact(pairs, tensors):
    """Replaces what the importer rounded, and names every weight as its tensor."""
    for name, (root, order) in pairs.items():
        tensor = tensors[name]
        root.set_friendly_name(name)
        if tensor.tensor_type.name == "Q4_1":
            use_instead(root, make_q4_1_exact(root, name, tensor, order), name)
        elif len(tensor.shape) == 1:
            values = dequantised(tensor, order).reshape(tuple(root.shape))
            if not np.array_equal(evaluate(root), values):
                use_instead(root, ov.op.Constant(values), name)


def make_scalars_exact(scalars, epsilon):
    """Puts back the epsilon of the norms, where the importer rounded it to f16."""
    epsilon = np.float32(epsilon)
    for root in scalars:
        value = evaluate(root)
        if value.size and value.reshape(-1)[0] == np.float32(np.float16(epsilon)) != epsilon:
            exact = ov.op.Constant(np.full(tuple(root.shape), epsilon, dtype=np.float32))
            use_instead(root, exact, root.get_friendly_name() + "_exact")


def split_roots(model, table):
    """The weights, the position frequencies and the scalars among the constants."""
    weights, rope, scalars = [], [], []
    for root in constant_roots(model):
        shape = tuple(root.shape)
        if np.prod(shape, dtype=int) <= 1:
            scalars.append(root)
        elif shape == (1, len(table), 1):
            rope.append(root)
        else:
            weights.append(root)
    if len(rope) != 1:
        raise Refusal("OpenVINO's GGUF importer made a position embedding that isn't known here.")
    return weights, rope[0], scalars


# f32's unit roundoff is 2^-24. A frequency in f32 may be some of them off (powf).
ROPE_BOUND = 2.0**-21


def rope_is_exact(root, table):
    """Whether the position frequencies in the graph are those of the GGUF, up to f32."""
    return bool(np.all(np.abs(evaluate(root).reshape(-1) - table) <= ROPE_BOUND * table))


# ---- Verification ------------------------------------------------------------------------


def bound_of(tensor, order, values):
    """How far a weight of the graph may be from the GGUF's.

    Zero, except for Q4_1: F16 and F32 are copied, and the code times d of Q8_0 and Q4_0
    (8 bits times 11) is exact in f32. Q4_1's (q - z)*d rounds z, the difference and the
    product, and the reference rounds d*q + m: each to 2^-24 of |m| or |w|, four in all.
    """
    if tensor.tensor_type.name != "Q4_1":
        return np.float32(0)
    _, m, _ = blocks_of(tensor)
    m = np.broadcast_to(np.abs(m[order].astype(np.float32)), (*m.shape[:2], 32))
    return np.float32(2.0**-22) * (m.reshape(values.shape) + np.abs(values))


def verify(model, tensors, arch, meta):
    """Compares every weight of the model as written with the GGUF; returns the largest error."""
    table = frequencies(arch, meta, tensors)
    weights, rope, _ = split_roots(model, table)
    if not rope_is_exact(rope, table):
        raise Refusal("The position frequencies of the OpenVINO model aren't the GGUF's.")
    largest, seen = 0.0, {}
    for root in weights:
        name = root.get_friendly_name()
        if name not in tensors or name in seen:
            raise Refusal(f"The OpenVINO model has a weight that isn't in the GGUF: {name}.")
        tensor = tensors[name]
        order = importer_order(name, int(tensor.shape[-1]), arch, meta)
        wanted = dequantised(tensor, order)
        error = np.abs(evaluate(root).reshape(wanted.shape) - wanted)
        if not np.all(error <= bound_of(tensor, order, wanted)):  # false for a NaN as well
            raise Refusal(f"The weights of {name} in the OpenVINO model differ from the GGUF's.")
        largest = max(largest, float(error.max()))
        seen[name] = root
    check_all_used(seen, without_rope(tensors))
    return largest, len(seen)


def without_rope(tensors):
    """The tensors that are weights: all but the factors of the position frequencies."""
    return {name: tensor for name, tensor in tensors.items() if name != "rope_freqs.weight"}


# ---- The steps ---------------------------------------------------------------------------


def one_line(text):
    """A message in one line, without a full stop at its end."""
    return " ".join(str(text).split()).rstrip(".")


def run_importer(weights, folder):
    """Lets openvino-genai write its model of the GGUF into a folder; returns its path."""
    link = folder / "model.gguf"
    link.symlink_to(weights.resolve())
    done = subprocess.run(
        [sys.executable, "-c", IMPORT, str(link)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if done.returncode:
        sys.stderr.write(done.stdout)
        lines = [line for line in map(one_line, done.stdout.splitlines()) if line]
        reason = lines[-1] if lines else "it said nothing"
        if done.returncode < 0:
            reason = f"it crashed with signal {-done.returncode}"
        raise Refusal(f"OpenVINO's GGUF importer refuses the file: {reason}.")
    path = folder / "openvino_model.xml"
    if not path.exists():
        raise Refusal("OpenVINO's GGUF importer wrote no model.")
    return path


def read_model(path):
    """Reads an OpenVINO model."""
    return ov.Core().read_model(path)


def repair(model, tensors, arch, meta):
    """Makes the imported model exact."""
    table = frequencies(arch, meta, tensors)
    weights, rope, scalars = split_roots(model, table)
    tensors = without_rope(tensors)
    pairs = assign(weights, tensors, arch, meta)
    check_all_used(pairs, tensors)
    make_exact(pairs, tensors)
    make_scalars_exact(scalars, meta(f"{arch}.attention.layer_norm_rms_epsilon", 0.0))
    if not rope_is_exact(rope, table):
        exact = ov.op.Constant(table.astype(np.float32).reshape(tuple(rope.shape)))
        use_instead(rope, exact, "rope_frequencies")


def convert(weights, out):
    """Converts a GGUF file; raises a Refusal if that isn't possible exactly."""
    say(f"reading {weights}")
    meta, tensors = read_gguf(weights)
    check_types(tensors)
    arch = meta("general.architecture")
    with work_folder(out) as work:
        say("importing the GGUF with openvino-genai")
        (work / "raw").mkdir()
        model = read_model(run_importer(weights, work / "raw"))
        say("making the weights exact")
        repair(model, tensors, arch, meta)
        made = work / "openvino_model.xml"
        ov.save_model(model, made, compress_to_fp16=False)
        say("comparing every weight with the GGUF")
        largest, count = verify(read_model(made), tensors, arch, meta)
        say(f"{count} tensors are equal; the largest difference of a weight is {largest:.1e}")
        # The .xml is what marks a complete model: it goes first and comes last.
        (out / made.name).unlink(missing_ok=True)
        os.replace(made.with_suffix(".bin"), out / "openvino_model.bin")
        os.replace(made, out / made.name)
    say(f"wrote {out / 'openvino_model.xml'} and .bin")


@contextlib.contextmanager
def work_folder(out):
    """A temporary folder inside the output folder; leaves nothing behind."""
    existed = out.exists()
    out.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=".converting-", dir=out))
    try:
        yield work
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        if not existed:
            with contextlib.suppress(OSError):
                out.rmdir()
        raise
    shutil.rmtree(work, ignore_errors=True)


def main():
    """Runs the conversion; every failure is one sentence on stdout and exit code 3."""
    if len(sys.argv) != 3:
        print("Usage: convert.py WEIGHTS.gguf OUT_FOLDER.")
        return REFUSED
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        convert(Path(sys.argv[1]), Path(sys.argv[2]))
    except Refusal as refusal:
        print(refusal)
        return REFUSED
    except Exception as error:  # anything else is a fault of the script or of the packages
        traceback.print_exc()
        print(f"The conversion to OpenVINO failed: {type(error).__name__}: {one_line(error)}.")
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main())
