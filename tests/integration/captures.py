"""Writes captures, whole or damaged, with the standard library alone."""

import json
import os
import random
import struct
import subprocess

CLI = os.environ["SNAPMLA_CLI"]
SOURCES = os.environ["SNAPMLA_SOURCES"]
CAPTURES = os.path.join(SOURCES, "examples", "captures")


def run_cli(*arguments, **options):
    return subprocess.run([CLI, *map(str, arguments)], capture_output=True, text=True, timeout=300,
                          **options)


def bf16(values):
    """BF16 bytes of floats, cut instead of rounded: the values are then the ones that count."""
    floats = struct.pack(f"<{len(values)}f", *values)
    return b"".join(floats[i + 2 : i + 4] for i in range(0, len(floats), 4))


def f32(values):
    return struct.pack(f"<{len(values)}f", *values)


class Capture:
    """A small capture: `tensors` maps names to [dtype, shape, bytes] and may be changed at will."""

    def __init__(self, tokens=70, s_q=2, h_q=3, query_std=0.3, kv_mean=0.5, seed=1):
        rng = random.Random(seed)
        normal = lambda n, mean, std: [rng.gauss(mean, std) for _ in range(n)]
        self.metadata = {
            "layer": "3",
            "softmax_scale": "0.0883883476",
            "query_positions": ",".join(str(tokens - s_q + i) for i in range(s_q)),
        }
        self.tensors = {
            "c_kv": ["BF16", [tokens, 512], bf16(normal(tokens * 512, kv_mean, 1.0))],
            "k_pe": ["BF16", [tokens, 64], bf16(normal(tokens * 64, 0.0, 3.0))],
            "q_nope_absorbed": ["BF16", [s_q, h_q, 512],
                                bf16(normal(s_q * h_q * 512, 0.0, query_std))],
            "q_pe": ["BF16", [s_q, h_q, 64], bf16(normal(s_q * h_q * 64, 0.0, query_std))],
        }
        self.edit_header = None  # called with the header before it is written

    def set_value(self, name, index, raw):
        dtype, shape, data = self.tensors[name]
        at = index * len(raw)
        self.tensors[name] = [dtype, shape, data[:at] + raw + data[at + len(raw):]]

    def header(self):
        header, at = {"__metadata__": self.metadata}, 0
        for name, (dtype, shape, data) in self.tensors.items():
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
            at += len(data)
        if self.edit_header:
            self.edit_header(header)
        return header

    def to_bytes(self, header_text=None):
        text = json.dumps(self.header()) if header_text is None else header_text
        text = text.encode() if isinstance(text, str) else text
        data = b"".join(data for _, _, data in self.tensors.values())
        return struct.pack("<Q", len(text)) + text + data

    def write(self, path):
        with open(path, "wb") as file:
            file.write(self.to_bytes())
        return path
