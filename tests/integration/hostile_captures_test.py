"""Damaged and hostile captures: each gives exit code 2 and a message that says what is wrong."""

import json
import os
import socket
import struct
import tempfile
import unittest

from captures import Capture, f32, run_cli


def with_metadata(**changes):
    capture = Capture()
    for key, value in changes.items():
        if value is None:
            del capture.metadata[key]
        else:
            capture.metadata[key] = value
    return capture.to_bytes()


def with_tensor(name, dtype=None, shape=None, data=None):
    capture = Capture()
    old = capture.tensors.get(name, [None, None, None])
    capture.tensors[name] = [dtype or old[0], shape or old[1], old[2] if data is None else data]
    return capture.to_bytes()


def without(name):
    capture = Capture()
    del capture.tensors[name]
    return capture.to_bytes()


def with_header(edit):
    capture = Capture()
    capture.edit_header = edit
    return capture.to_bytes()


def with_value(name, index, raw):
    capture = Capture()
    capture.set_value(name, index, raw)
    return capture.to_bytes()


def with_field(name, field, value):
    return with_header(lambda header: header[name].update({field: value}))


def with_header_text(change):
    capture = Capture()
    return capture.to_bytes(change(json.dumps(capture.header())))


def with_query_count(s_q, h_q):
    return Capture(s_q=s_q, h_q=h_q).to_bytes()


WHOLE = Capture().to_bytes()
NAN, INF = b"\xc0\x7f", b"\x80\xff"
SHORT_ROPE = Capture(tokens=69).tensors["k_pe"]
ONE_QUERY = Capture(s_q=1).tensors["q_pe"]

# What is wrong, the file's bytes, and the parts that the message must have.
CASES = [
    ("empty file", b"", ["file size", "0 bytes"]),
    ("four bytes", WHOLE[:4], ["file size", "4 bytes"]),
    ("header length alone", WHOLE[:8], ["header length"]),
    ("truncated header", WHOLE[:100], ["header length"]),
    ("truncated data", WHOLE[:-1], ["data_offsets", "bytes after the header"]),
    ("only the header", WHOLE[: 8 + struct.unpack("<Q", WHOLE[:8])[0]], ["data_offsets"]),
    ("bytes past the data", WHOLE + b"\0", ["file size", "as the header says"]),
    ("header length beyond the file", struct.pack("<Q", len(WHOLE)) + WHOLE[8:],
     ["header length", str(len(WHOLE))]),
    ("header length 2^64 - 1", b"\xff" * 8 + WHOLE[8:], ["header length", str(2**64 - 1)]),
    ("header length 2^63", struct.pack("<Q", 2**63) + WHOLE[8:], ["header length", str(2**63)]),
    ("header length 0", struct.pack("<Q", 0) + WHOLE[8:], ["header length", "got 0"]),
    ("not JSON", with_header_text(lambda text: "x" + text[1:]), ["header", "JSON", "byte 1"]),
    ("JSON cut off", with_header_text(lambda text: text[:-1]), ["header", "JSON"]),
    ("binary header", with_header_text(lambda text: b"\xff\xfe" + text.encode()), ["header", "JSON"]),
    ("JSON array", with_header_text(lambda text: "[" + text + "]"), ["header", "object", "array"]),
    ("JSON number too large", with_header_text(lambda text: text.replace("[70, 512]", "[1e999]")),
     ["header", "number"]),
    ("deeply nested JSON", with_header_text(lambda text: "[" * 200000 + "]" * 200000),
     ["header", "nested"]),
    ("deeply nested value", with_header_text(
        lambda text: '{"c_kv": ' + "[" * 200000 + "]" * 200000 + "}"), ["header", "nested"]),
    ("one name twice", with_header_text(lambda text: text[:-1] + ', "c_kv": {}}'),
     ["header", '"c_kv" twice']),
    ("metadata no object", with_header(lambda h: h.update(__metadata__=[1])), ["__metadata__"]),
    ("metadata not text", with_header(lambda h: h.update(__metadata__={"softmax_scale": 0.1})),
     ["__metadata__", "softmax_scale", "string"]),
    ("tensor no object", with_header(lambda h: h.update(c_kv=7)), ["c_kv", "got 7"]),
    ("no dtype", with_header(lambda h: h["c_kv"].pop("dtype")), ["c_kv", "dtype"]),
    ("no shape", with_header(lambda h: h["k_pe"].pop("shape")), ["k_pe", "shape"]),
    ("no offsets", with_header(lambda h: h["q_pe"].pop("data_offsets")), ["q_pe", "data_offsets"]),
    ("dtype no text", with_field("c_kv", "dtype", 3), ["c_kv.dtype", "got 3"]),
    ("shape no array", with_field("c_kv", "shape", "70"), ["c_kv.shape"]),
    ("negative dimension", with_field("c_kv", "shape", [-70, 512]), ["c_kv.shape", "-70"]),
    ("fractional dimension", with_field("c_kv", "shape", [70.5, 512]), ["c_kv.shape", "70.5"]),
    ("dimension beyond 2^63", with_field("c_kv", "shape", [2**64 - 1, 1]), ["c_kv.shape"]),
    ("shape product overflows", with_field("c_kv", "shape", [2**62, 512]),
     ["c_kv.shape", "2^64 bytes"]),
    ("shape product overflows to the right size",
     with_field("c_kv", "shape", [2**32, 2**31, 70, 512]), ["c_kv.shape", "2^64 bytes"]),
    ("shape larger than offsets", with_field("c_kv", "shape", [71, 512]),
     ["c_kv.data_offsets", str(71 * 1024), str(70 * 1024)]),
    ("dtype larger than offsets", with_field("c_kv", "dtype", "F32"), ["c_kv.data_offsets"]),
    ("one offset", with_field("c_kv", "data_offsets", [0]), ["c_kv.data_offsets"]),
    ("negative offset", with_field("c_kv", "data_offsets", [-1, 70 * 1024]), ["c_kv.data_offsets"]),
    ("offsets reversed", with_field("c_kv", "data_offsets", [70 * 1024, 0]), ["c_kv.data_offsets"]),
    ("offset beyond the file", with_field("c_kv", "data_offsets", [2**63, 2**63 + 70 * 1024]),
     ["c_kv.data_offsets", "after the header"]),
    ("tensors overlap", with_field("k_pe", "data_offsets", [0, 70 * 128]),
     ["data_offsets", "ends"]),
    ("gap between tensors", with_header(lambda h: h.pop("k_pe")), ["data_offsets", "ends"]),
    ("c_kv missing", without("c_kv"), ["c_kv", "none"]),
    ("k_pe missing", without("k_pe"), ["k_pe", "none"]),
    ("q_nope_absorbed missing", without("q_nope_absorbed"), ["q_nope_absorbed", "none"]),
    ("q_pe missing", without("q_pe"), ["q_pe", "none"]),
    ("c_kv in F16", with_field("c_kv", "dtype", "F16"), ["c_kv", "BF16", "F16"]),
    ("unknown dtype", with_field("c_kv", "dtype", "Q4\x1b[31m"), ["c_kv", "BF16", "Q4?[31m"]),
    ("k_pe of another length", with_tensor("k_pe", *SHORT_ROPE), ["k_pe", "[70, 64]", "[69, 64]"]),
    ("q_pe of another count", with_tensor("q_pe", *ONE_QUERY), ["q_pe", "[2, 3, 64]"]),
    ("token_ids of another length", with_tensor("token_ids", "I32", [69], b"\0" * 276),
     ["token_ids", "[70]", "[69]"]),
    ("wrong width", with_field("c_kv", "shape", [140, 256]), ["c_kv", "[*, 512]", "[140, 256]"]),
    ("wrong rank", with_field("c_kv", "shape", [70 * 512]), ["c_kv", "[*, 512]"]),
    ("no tokens", with_tensor("c_kv", "BF16", [0, 512], b""), ["c_kv", "tokens", "got 0"]),
    ("no heads", with_query_count(2, 0), ["q_nope_absorbed", "head"]),
    ("more queries than tokens", with_query_count(71, 1), ["q_nope_absorbed", "1 to 70"]),
    ("NaN in c_kv", with_value("c_kv", 3 * 512 + 7, NAN), ["c_kv", "nan at [3, 7]"]),
    ("infinity in k_pe", with_value("k_pe", 69 * 64 + 63, INF), ["k_pe", "-inf at [69, 63]"]),
    ("NaN in q_nope_absorbed", with_value("q_nope_absorbed", 1 * 3 * 512 + 2 * 512, NAN),
     ["q_nope_absorbed", "nan at [1, 2, 0]"]),
    ("infinity in q_pe", with_value("q_pe", 1, INF), ["q_pe", "-inf at [0, 0, 1]"]),
    ("NaN in ref_lse", with_tensor("ref_lse", "F32", [2, 3], f32([0, 0, 0, 0, float("nan"), 0])),
     ["ref_lse", "nan at [1, 1]"]),
    ("ref_out_latent of another shape", with_tensor("ref_out_latent", "F32", [2, 3], b"\0" * 24),
     ["ref_out_latent", "[2, 3, 512]"]),
    ("ref_lse that is wrong", with_tensor("ref_lse", "F32", [2, 3], b"\0" * 24),
     ["ref_lse", "what the capture's tensors give"]),
    ("ref_out_latent that is wrong",
     with_tensor("ref_out_latent", "F32", [2, 3, 512], b"\0" * (6 * 2048)),
     ["ref_out_latent", "what the capture's tensors give"]),
    ("no softmax scale", with_metadata(softmax_scale=None),
     ["metadata softmax_scale", "--softmax-scale", "none"]),
    ("no metadata", with_header(lambda h: h.pop("__metadata__")), ["metadata softmax_scale"]),
    ("softmax scale no number", with_metadata(softmax_scale="0.1x"),
     ["metadata softmax_scale", "'0.1x'"]),
    ("softmax scale empty", with_metadata(softmax_scale=""), ["metadata softmax_scale", "''"]),
    ("softmax scale NaN", with_metadata(softmax_scale="nan"), ["metadata softmax_scale", "'nan'"]),
    ("softmax scale infinite", with_metadata(softmax_scale="1e39"), ["metadata softmax_scale"]),
    ("softmax scale zero", with_metadata(softmax_scale="0"), ["metadata softmax_scale", "'0'"]),
    ("softmax scale negative", with_metadata(softmax_scale="-1"), ["metadata softmax_scale"]),
    ("queries elsewhere", with_metadata(query_positions="3,4"),
     ["metadata query_positions", "68,69", "3,4"]),
]


class HostileCaptures(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "capture.safetensors")

    def check_refused(self, path, parts, *arguments):
        result = run_cli("decode", path, *arguments)
        self.assertEqual(result.returncode, 2, result.stderr[-2000:])
        self.assertEqual(result.stdout, "")
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr[-2000:])
        self.assertLess(len(result.stderr), 600)
        for part in ["snapmla: ", str(path), *parts]:
            self.assertIn(part, result.stderr)
        self.assertNotIn("\x1b", result.stderr)

    def test_damaged_files(self):
        for name, content, parts in CASES:
            with self.subTest(name):
                with open(self.path, "wb") as file:
                    file.write(content)
                self.check_refused(self.path, parts)

    def test_the_undamaged_file_is_accepted(self):
        Capture().write(self.path)
        result = run_cli("decode", self.path)
        self.assertIn(result.returncode, (0, 1), result.stderr)
        self.assertEqual(result.stderr, "")

    def test_cut_anywhere(self):
        """Every prefix of the header's beginning, and a cut in every tensor."""
        lengths = [*range(0, 64), *range(64, len(WHOLE), len(WHOLE) // 40)]
        for length in lengths:
            with self.subTest(length):
                with open(self.path, "wb") as file:
                    file.write(WHOLE[:length])
                self.check_refused(self.path, [])

    def test_what_is_no_file(self):
        folder = os.path.dirname(self.path)
        self.check_refused(os.path.join(folder, "absent.safetensors"), ["no such file"])
        self.check_refused(folder, ["*.safetensors"])
        self.check_refused("/dev/null", ["regular file"])
        self.check_refused("/dev/zero", ["regular file"])
        os.mkdir(self.path)
        self.check_refused(folder, ["regular file", "directory"])

    def test_pipes_and_sockets_do_not_hang(self):
        os.mkfifo(self.path)
        self.check_refused(self.path, ["regular file"])
        path = os.path.join(os.path.dirname(self.path), "socket")
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path)
            self.check_refused(path, ["regular file"])

    def test_bad_file_after_a_good_one(self):
        folder = os.path.dirname(self.path)
        Capture().write(os.path.join(folder, "a.safetensors"))
        with open(os.path.join(folder, "b.safetensors"), "wb") as file:
            file.write(WHOLE[:50])
        self.check_refused(folder, ["b.safetensors", "header length"])


if __name__ == "__main__":
    unittest.main()
