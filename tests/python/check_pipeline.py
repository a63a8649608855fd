"""Checks quantization and both CPU backends on the captured inputs against NumPy.

Everything here is written from docs/numerics.md and docs/cache-format.md: nothing is shared with the
library. Needs numpy and nothing else; without it the test is skipped (exit code 77).

    check_pipeline.py --dump BUILD/tests/python/dump_pipeline --captures examples/captures
"""

import argparse
import json
import math
import pathlib
import struct
import subprocess
import sys
import tempfile

try:
    import numpy as np
except ImportError:
    print("skipped: numpy is not installed for", sys.executable)
    sys.exit(77)

PAGE_TOKENS, PAGE_BYTES = 64, 41216
ROPE_OFFSET, SCALE_OFFSET = 32768, 40960


def read_safetensors(path):
    """Tensors as arrays (BF16 as uint16 bits) and the metadata."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    metadata = header.pop("__metadata__", {})
    types = {"BF16": np.uint16, "F32": np.float32, "I32": np.int32}
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        raw = np.frombuffer(data[8 + size + begin : 8 + size + end], types[entry["dtype"]])
        tensors[name] = raw.reshape(entry["shape"])
    return tensors, metadata


def bf16_to_float(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def float_to_bf16(x):
    """Round to nearest even; finite values only."""
    u = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def e4m3_table():
    """Value of each code: sign, 4 bits of exponent with bias 7, 3 of fraction; 0x7f is NaN."""
    values = np.zeros(256)
    for code in range(256):
        exponent, fraction = (code >> 3) & 15, code & 7
        value = fraction * 2.0**-9 if exponent == 0 else (8 + fraction) * 2.0 ** (exponent - 10)
        if code & 0x7F == 0x7F:
            value = math.nan
        values[code] = -value if code & 0x80 else value
    return values


E4M3 = e4m3_table()


def float_to_e4m3(x):
    """The nearest finite value, the even code where two are equally near; saturating."""
    magnitudes = E4M3[:0x7F]
    a = np.abs(x.astype(np.float64))
    high = np.minimum(np.searchsorted(magnitudes, a), 0x7E)
    low = np.maximum(high - 1, 0)
    up, down = magnitudes[high] - a, a - magnitudes[low]
    take_low = (down < up) | ((down == up) & (low % 2 == 0))
    code = np.where(a >= 448, 0x7E, np.where(take_low, low, high)).astype(np.uint8)
    return code | np.where(np.signbit(x), 0x80, 0).astype(np.uint8)


def quantize(content, rope, power_of_two):
    """Section 2: codes, scale, rope bits. content and rope are float32."""
    amax = np.abs(content).max(-1).astype(np.float32)
    if power_of_two:
        exponent = np.ceil(np.log2(amax.astype(np.float64) / 464))
        # log2 of a double is exact enough to be off by one at the most; put that right.
        exponent += (amax > 464 * np.exp2(exponent)).astype(int)
        exponent -= (amax <= 464 * np.exp2(exponent - 1)).astype(int)
        scale = np.exp2(np.maximum(exponent, -40)).astype(np.float32)
    else:
        scale = np.maximum(amax / np.float32(448), np.float32(2.0**-40))
    inverse = (np.float32(1) / scale)[..., None]
    return float_to_e4m3(content * inverse), scale, float_to_bf16(rope * inverse)


def attention(q, kv, softmax_scale):
    """float64, bottom-right aligned; q [s_q, h, 576], kv [n, 576] -> out, lse [h, s_q]."""
    s_q, h, _ = q.shape
    n = len(kv)
    out, lse = np.zeros((s_q, h, 512)), np.zeros((h, s_q))
    for i in range(s_q):
        keys = kv[: n - (s_q - 1 - i)]
        x = q[i] @ keys.T * softmax_scale
        top = x.max(-1, keepdims=True)
        e = np.exp(x - top)
        out[i] = e @ keys[:, :512] / e.sum(-1, keepdims=True)
        lse[:, i] = top[:, 0] + np.log(e.sum(-1))
    return out, lse


class Checker:
    def __init__(self):
        self.failed = 0

    def gate(self, what, value, limit):
        ok = value <= limit
        self.failed += not ok
        print(f"  {'ok  ' if ok else 'FAIL'} {what}: {value:.3g} (gate {limit:g})")

    def same(self, what, actual, expected):
        different = int((actual != expected).sum())
        self.gate(f"{what}, bytes that differ of {expected.size}", different, 0)


def relative_l2(actual, expected):
    return float(np.linalg.norm(actual - expected) / np.linalg.norm(expected))


def cosine_distance(a, b):
    return float(1 - (a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b))


def check_capture(path, dump, power_of_two, checker):
    t, metadata = read_safetensors(path)
    kv_bits = np.concatenate([t["c_kv"], t["k_pe"]], -1)
    q_bits = np.concatenate([t["q_nope_absorbed"], t["q_pe"]], -1)
    n, (s_q, h, _) = len(kv_bits), q_bits.shape
    softmax_scale = np.float32(metadata["softmax_scale"])
    with tempfile.TemporaryDirectory() as folder:
        source, target = pathlib.Path(folder, "in"), pathlib.Path(folder, "out")
        source.write_bytes(
            struct.pack("<4if", n, s_q, h, int(power_of_two), softmax_scale)
            + kv_bits.tobytes() + q_bits.tobytes()
        )
        subprocess.run([dump, source, target], check=True)
        data = target.read_bytes()

    offset = 0

    def take(dtype, *shape):
        nonlocal offset
        count = math.prod(shape)
        array = np.frombuffer(data, dtype, count, offset).reshape(shape)
        offset += array.nbytes
        return array

    pages = -(-n // PAGE_TOKENS)
    q_codes, q_scale = take(np.uint8, s_q, h, 512), take(np.float32, s_q, h)
    q_rope = take(np.uint16, s_q, h, 64)
    cache = take(np.uint8, pages, PAGE_BYTES)
    results = {}
    for backend in ("cpu", "reference"):
        results[backend] = take(np.float32, s_q, h, 512), take(np.float32, h, s_q)
    assert offset == len(data), "dump_pipeline wrote more than expected"

    k_codes = cache[:, :ROPE_OFFSET].reshape(-1, 512)[:n]
    k_rope = np.ascontiguousarray(cache[:, ROPE_OFFSET:SCALE_OFFSET]).view(np.uint16)
    k_rope = k_rope.reshape(-1, 64)[:n]
    k_scale = np.ascontiguousarray(cache[:, SCALE_OFFSET:PAGE_BYTES]).view(np.float32)
    k_scale = k_scale.reshape(-1)[:n]

    kv, q = bf16_to_float(kv_bits), bf16_to_float(q_bits)
    codes, scale, rope = quantize(kv[:, :512], kv[:, 512:], power_of_two)
    checker.same("key codes", k_codes, codes)
    checker.same("key scales", k_scale, scale)
    checker.same("key rope", k_rope, rope)
    codes, scale, rope = quantize(q[..., :512], q[..., 512:], power_of_two)
    checker.same("query codes", q_codes, codes)
    checker.same("query scales", q_scale, scale)
    checker.same("query rope", q_rope, rope)

    def stored(codes, scale, rope):
        real = np.concatenate([E4M3[codes], bf16_to_float(rope).astype(np.float64)], -1)
        return real * scale[..., None].astype(np.float64)

    expected, lse = attention(
        stored(q_codes, q_scale, q_rope), stored(k_codes, k_scale, k_rope), softmax_scale
    )
    out, out_lse = results["reference"]
    checker.gate("reference, relative L2 to NumPy", relative_l2(out, expected), 1e-6)
    checker.gate("reference, lse", float(np.abs(out_lse - lse).max()), 1e-5)
    out, out_lse = results["cpu"]
    checker.gate("cpu, relative L2 to float64 (FP8 P)", relative_l2(out, expected), 1e-2)
    checker.gate("cpu, 1 - cosine to float64", cosine_distance(out, expected), 6e-5)
    checker.gate("cpu, lse", float(np.abs(out_lse - lse).max()), 1e-4 + 2.0**-11 * np.abs(lse).max())

    original, original_lse = attention(q.astype(np.float64), kv.astype(np.float64), softmax_scale)
    checker.gate("NumPy against the capture's own result", relative_l2(
        original, t["ref_out_latent"].astype(np.float64)), 1e-6)
    checker.gate("NumPy lse against the capture's", float(
        np.abs(original_lse.T - t["ref_lse"]).max()), 1e-5)
    checker.gate("cpu, relative L2 to the BF16 originals", relative_l2(out, original), 3e-2)
    checker.gate("cpu, 1 - cosine to the BF16 originals", cosine_distance(out, original), 5e-4)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dump", required=True)
    parser.add_argument("--captures", required=True, type=pathlib.Path)
    arguments = parser.parse_args()
    captures = sorted(arguments.captures.glob("*.safetensors"))
    if not captures:
        sys.exit(f"no captures in {arguments.captures}")
    checker = Checker()
    for path in captures:
        for power_of_two in (False, True):
            print(f"{path.name}, {'power_of_two' if power_of_two else 'exact'} scales")
            check_capture(path, arguments.dump, power_of_two, checker)
    print(f"{checker.failed} checks failed" if checker.failed else "all checks passed")
    sys.exit(1 if checker.failed else 0)


if __name__ == "__main__":
    main()
