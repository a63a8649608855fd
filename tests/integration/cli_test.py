"""The command line on real captures: tables, JSON, options, exit codes."""

import json
import math
import os
import pty
import re
import shutil
import subprocess
import tempfile
import unittest

from captures import CAPTURES, CLI, Capture, bf16, run_cli

MEASURES = ("relative_l2", "one_minus_cosine", "rmse", "max_lse_error")


class CliTest(unittest.TestCase):
    def folder(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return folder.name

    def run_ok(self, *arguments):
        result = run_cli(*arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stderr, "")
        return result.stdout

    def run_json(self, *arguments):
        return json.loads(self.run_ok(*arguments, "--json"))

    def check_refused(self, code, parts, *arguments):
        result = run_cli(*arguments)
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertEqual(result.stdout, "")
        self.assertTrue(result.stderr.startswith("snapmla: "), result.stderr)
        for part in parts:
            self.assertIn(part, result.stderr)


class Decode(CliTest):
    def test_table_has_every_layer_and_the_sum(self):
        text = self.run_ok("decode", CAPTURES)
        rows = [line.split() for line in text.splitlines() if re.match(r"(\d+|all) ", line)]
        self.assertEqual([row[0] for row in rows], ["0", "1", "2", "3", "4", "5", "all"])
        for row in rows:
            self.assertEqual(row[-1], "yes")
        self.assertIn("644 bytes per token", text)
        self.assertIn("1152", text)
        self.assertIn("Every layer is within the accuracy gates.", text)

    def test_json_holds_the_gates_of_the_default_numerics(self):
        self.assertFalse(self.run_json("decode", self.layer(0))["gates_enforced"])
        report = self.run_json("decode", CAPTURES, "--check")
        self.assertEqual(len(report["captures"]), 6)
        self.assertTrue(report["gates_enforced"])
        self.assertTrue(report["within"])
        self.assertEqual(report["cache"]["bytes_per_token"], 644)
        for entry in [*report["captures"], report["overall"]]:
            for reference, gate in report["gates"].items():
                for measure, limit in gate.items():
                    self.assertGreater(entry[reference][measure], 0)
                    self.assertLessEqual(entry[reference][measure], limit)
                for measure in MEASURES:
                    self.assertTrue(math.isfinite(entry[reference][measure]))
        for entry in report["captures"]:
            self.assertTrue(entry["has_reference"])
            self.assertEqual((entry["tokens"], entry["s_q"], entry["h_q"]), (2048, 2, 16))
            for time in entry["time_us"].values():
                self.assertGreater(time, 0)

    def errors(self, *arguments):
        entry = self.run_json("decode", self.layer(0), *arguments)["captures"][0]
        return entry["vs_bf16"]

    @staticmethod
    def layer(index):
        return os.path.join(CAPTURES, f"mla_decode_n2048_layer{index}.safetensors")

    def test_form_and_page_order_do_not_change_a_bit(self):
        """The default backend may be any, so what may differ is the plan's summation order."""
        expected = self.errors("--batch-invariant")
        for change in (["--form", "packed"], ["--seed", "7"], ["--repeat", "1"]):
            self.assertEqual(self.errors("--batch-invariant", *change), expected, change)

    def test_plans_change_summation_order_only(self):
        expected = self.errors()
        for change in (["--splits", "8"], ["--batch-invariant"], ["--split-tokens", "128"],
                       ["--workers", "7"]):
            errors = self.errors(*change)
            for measure in ("relative_l2", "one_minus_cosine", "rmse"):
                self.assertAlmostEqual(errors[measure] / expected[measure], 1, 3, change)

    def test_options_reach_the_library(self):
        """Options that change the arithmetic must change the result."""
        default = self.errors("--backend", "cpu")
        for change in (["--p-block", "128"], ["--scale-mode", "exact"],
                       ["--scale-mode", "power_of_two", "--p-block", "128"],
                       ["--accumulate", "hopper"], ["--normalize-by-quantized-p"],
                       ["--numerics", "chained"]):
            with self.subTest(change):
                other = self.errors("--backend", "cpu", *change)
                if change == ["--scale-mode", self.default_scale_mode()]:
                    self.assertEqual(other, default)
                else:
                    self.assertNotEqual(other, default)
        one = self.errors("--backend", "cpu", "--accumulate", "hopper")
        four = self.errors("--backend", "cpu", "--accumulate", "hopper", "--qk-accumulators", "4")
        self.assertNotEqual(one, four)

    def default_scale_mode(self):
        return self.run_json("decode", self.layer(0))["cache"]["scale_mode"]

    def test_softmax_scale_replaces_the_captures_own(self):
        report = self.run_json("decode", self.layer(2), "--softmax-scale", "0.05")
        capture = report["captures"][0]
        self.assertAlmostEqual(capture["softmax_scale"], 0.05, 7)
        self.assertFalse(capture["has_reference"])  # which is for the other scale

    def test_reference_backend_is_its_own_oracle(self):
        report = self.run_json("decode", self.layer(1), "--backend", "reference")
        self.assertEqual(report["backend"], "reference")
        self.assertEqual(report["overall"]["vs_dequantized"],
                         {measure: 0 for measure in MEASURES})
        self.assertGreater(report["overall"]["vs_bf16"]["relative_l2"], 1e-3)

    def test_capture_without_references_or_positions(self):
        capture = Capture(tokens=200)
        del capture.metadata["query_positions"]
        path = capture.write(os.path.join(self.folder(), "mine.safetensors"))
        result = run_cli("decode", path, "--json")
        self.assertIn(result.returncode, (0, 1))
        entry = json.loads(result.stdout)["captures"][0]
        self.assertFalse(entry["has_reference"])
        self.assertEqual((entry["tokens"], entry["s_q"], entry["h_q"]), (200, 2, 3))

    def test_first_query_does_not_see_the_last_token(self):
        """The last token is far from all others and draws attention: seen too early, it shows."""
        capture = Capture(tokens=130, s_q=2, h_q=1, query_std=0.05)
        for name, value in (("c_kv", 40.0), ("k_pe", 0.0)):
            dtype, shape, data = capture.tensors[name]
            width = shape[1]
            capture.tensors[name] = [dtype, shape, data[: -2 * width] + bf16([value] * width)]
        path = capture.write(os.path.join(self.folder(), "last.safetensors"))
        entry = json.loads(run_cli("decode", path, "--json").stdout)["captures"][0]
        self.assertLess(entry["vs_bf16"]["relative_l2"], 0.1)

    def test_gate_failure_exits_with_1(self):
        """Flat attention over values without a mean, where P's rounding does not average out."""
        capture = Capture(tokens=256, query_std=0.0, kv_mean=0.0)
        path = capture.write(os.path.join(self.folder(), "flat.safetensors"))
        # With powers of two all scales of this capture are equal, and P is exact.
        result = run_cli("decode", path, "--scale-mode", "exact", "--check")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("NO", result.stdout)
        self.assertIn("outside the accuracy gates", result.stdout)
        result = run_cli("decode", path, "--scale-mode", "exact", "--check", "--json")
        self.assertEqual(result.returncode, 1)
        self.assertFalse(json.loads(result.stdout)["within"])
        # The gates are for real activations: nothing is wrong with this decode.
        result = run_cli("decode", path, "--scale-mode", "exact")
        self.assertEqual(result.returncode, 0)
        self.assertIn("--check enforces them", result.stdout)

    def test_names_that_are_not_utf8_do_not_break_json(self):
        path = os.path.join(os.fsencode(self.folder()), b"bad\xff.safetensors")
        shutil.copyfile(self.layer(0), path)
        result = subprocess.run([CLI, "decode", "--json", path], capture_output=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        json.loads(result.stdout)

    def test_empty_arguments_are_refused(self):
        for option in ("--softmax-scale", "--seed", "--splits"):
            self.check_refused(2, [option, "a value"], "decode", self.layer(0), option, "")
        self.check_refused(2, ["seed"], "decode", self.layer(0), "--seed", "9" * 30)

    def test_studies_refuse_values_that_mean_nothing(self):
        self.check_refused(2, ["outlier-scale"], "accuracy", "--generate", "outliers",
                           "--outlier-scale", "nan")
        self.check_refused(2, ["softmax-scale"], "accuracy", "--generate", "mean",
                           "--softmax-scale", "0.1")
        self.check_refused(2, ["captures"], "analyze")

    def test_accuracy_agrees_with_decode(self):
        """The study emulates in double what decode computes."""
        study = self.run_json("accuracy", self.layer(3), "--study", "schemes")["inputs"][0]
        ours = self.run_json("decode", self.layer(3), "--backend", "cpu")["captures"][0]
        emulated = study["schemes"]["snapmla"]["everything"]["relative_l2"]
        self.assertAlmostEqual(emulated / ours["vs_bf16"]["relative_l2"], 1, delta=0.02)
        self.assertGreater(study["schemes"]["A"]["cache"]["relative_l2"],
                           1.15 * study["schemes"]["snapmla"]["cache"]["relative_l2"])
        self.assertEqual(len(study["schemes"]["snapmla"]["heads"]), 16)

    def test_accuracy_pipelines_show_what_in_place_accumulation_loses(self):
        study = self.run_json("accuracy", "--generate", "mean", "--tokens", "8192", "--heads", "1",
                              "--study", "pipelines")["inputs"][0]["pipelines"]
        self.assertGreater(study["in place"]["vs_dequantized"]["relative_l2"], 0.05)
        self.assertLess(study["promoted, QK x2"]["vs_dequantized"]["relative_l2"], 3e-3)
        self.assertLess(study["block-local"]["vs_dequantized"]["relative_l2"], 3e-3)

    def test_analyze_counts_every_value(self):
        entry = self.run_json("analyze", self.layer(0))["inputs"][0]
        self.assertEqual(sum(entry["content"]["histogram"]["counts"]), 2048 * 512)
        self.assertEqual(sum(entry["rope"]["histogram"]["counts"]), 2048 * 64)
        self.assertEqual(len(entry["rope"]["dimension_amax"]), 64)
        self.assertGreater(entry["rope"]["e4m3_mse"], 5 * entry["content"]["e4m3_mse"])
        self.assertIn("RoPE", self.run_ok("analyze", self.layer(0)))

    def test_directory_is_in_natural_order(self):
        folder = self.folder()
        for layer in (10, 9, 2):
            capture = Capture(tokens=64)
            capture.metadata["layer"] = str(layer)
            capture.write(os.path.join(folder, f"layer{layer}.safetensors"))
        open(os.path.join(folder, "README.md"), "w").close()
        report = json.loads(run_cli("decode", folder, "--json").stdout)
        self.assertEqual([capture["layer"] for capture in report["captures"]], ["2", "9", "10"])

    def test_bad_arguments(self):
        layer = self.layer(0)
        for parts, arguments in [
            (["captures"], []),
            (["backend", "'nope'", "reference"], [layer, "--backend", "nope"]),
            (["--form", "wide"], [layer, "--form", "wide"]),
            (["--scale-mode"], [layer, "--scale-mode", "3"]),
            (["--numerics"], [layer, "--numerics", "other"]),
            (["--accumulate"], [layer, "--accumulate", ""]),
            (["p_block", "got 3"], [layer, "--p-block", "3"]),
            (["forced_splits", "got -1"], [layer, "--splits", "-1"]),
            (["split_tokens", "got 100"], [layer, "--split-tokens", "100"]),
            (["qk_accumulators", "got 3"], [layer, "--qk-accumulators", "3"]),
            (["--splits"], [layer, "--splits", "many"]),
            (["--repeat"], [layer, "--repeat", "0"]),
            (["--seed"], [layer, "--seed", "x"]),
            (["--softmax-scale", "nan"], [layer, "--softmax-scale", "nan"]),
            (["--softmax-scale", "got 0"], [layer, "--softmax-scale", "0"]),
            (["--softmax-scale"], [layer, "--softmax-scale", "-0.1"]),
            (["--frobnicate"], [layer, "--frobnicate"]),
        ]:
            with self.subTest(arguments):
                self.check_refused(2, parts, "decode", *arguments)

    def test_unsupported_exits_with_3(self):
        self.check_refused(3, ["reference", "numerics"], "decode", self.layer(0), "--backend",
                           "reference", "--numerics", "chained")

    def test_progress_is_for_terminals(self):
        def stderr_on_terminal(*arguments):
            ours, theirs = pty.openpty()
            process = subprocess.Popen([CLI, "decode", self.layer(0), *arguments],
                                       stdout=subprocess.DEVNULL, stderr=theirs)
            os.close(theirs)
            text = b""
            try:
                while part := os.read(ours, 4096):
                    text += part
            except OSError:  # Linux ends a terminal's output with an error
                pass
            os.close(ours)
            self.assertEqual(process.wait(), 0)
            return text

        self.assertIn(b"float64", stderr_on_terminal())
        self.assertEqual(stderr_on_terminal("--no-progress"), b"")
        self.assertEqual(stderr_on_terminal("--json"), b"")

    def test_full_disk_is_an_error(self):
        with open("/dev/full", "w") as full:
            result = subprocess.run([CLI, "decode", self.layer(0), "--json"], stdout=full,
                                    stderr=subprocess.PIPE, text=True)
        self.assertEqual(result.returncode, 3)
        self.assertIn("snapmla: ", result.stderr)


class Explain(CliTest):
    def test_numbers(self):
        problem = ("--heads", 128, "--batch", 32, "--kv", 32768)
        report = self.run_json("explain", "--backend", "cpu", *problem)
        self.assertEqual(report["backend"], "cpu")
        self.assertEqual(report["row_tiles"], 2)
        self.assertEqual(report["cache_bytes"], 32 * 32768 * 644)
        self.assertEqual(report["flops"], 2 * 32 * 128 * 32768 * (576 + 512))
        self.assertGreater(report["estimated_us"], 0)
        self.assertIn(report["bound"], ("memory", "compute", "latency"))

    def test_plan_options(self):
        problem = ("--heads", 16, "--kv", 8192)
        self.assertEqual(self.run_json("explain", *problem, "--splits", 4)["splits"], 4)
        report = self.run_json("explain", *problem, "--split-tokens", 1024, "--s-q", 2)
        self.assertEqual(report["splits"], 8)
        # Eight partial results of 32 rows: 512 values and an lse each, in f32.
        self.assertGreaterEqual(report["workspace_bytes"], 8 * 32 * 513 * 4)
        report = self.run_json("explain", *problem, "--form", "packed", "--f32-out")
        self.assertEqual(report["problem"]["form"], "packed")
        self.assertEqual(report["problem"]["out"], "f32")

    def test_passed_over_backends_have_reasons(self):
        report = self.run_json("explain", "--heads", 16, "--kv", 100, "--backend", "reference")
        self.assertEqual(report["backend"], "reference")
        names = [line.split(":")[0] for line in report["passed_over"]]
        known = [backend["name"] for backend in self.run_json("info")["backends"]]
        self.assertEqual(names, known[: known.index("reference")])
        for line in report["passed_over"]:
            self.assertRegex(line, r"^\w+: .+")

    def test_text(self):
        text = self.run_ok("explain", "--heads", 128, "--batch", 32, "--kv", 32768)
        for word in ("backend", "kernel", "splits", "workers", "workspace", "cache read",
                     "arithmetic", "bound", "estimate", "not a measurement"):
            self.assertIn(word, text)

    def test_bad_arguments(self):
        for parts, arguments in [
            (["--heads"], ["--kv", "1"]),
            (["--kv"], ["--heads", "1"]),
            (["--heads"], ["--heads", "0", "--kv", "1"]),
            (["--kv"], ["--heads", "1", "--kv", "-1"]),
            (["--batch"], ["--heads", "1", "--kv", "1", "--batch", "99999999999"]),
            (["p_block"], ["--heads", "1", "--kv", "1", "--p-block", "5"]),
            (["qk_accumulators"], ["--heads", "1", "--kv", "1", "--qk-accumulators", "5"]),
            (["forced_splits"], ["--heads", "1", "--kv", "1", "--splits", "2",
                                 "--split-tokens", "128"]),
            (["backend"], ["--heads", "1", "--kv", "1", "--backend", "x"]),
        ]:
            with self.subTest(arguments):
                self.check_refused(2, parts, "explain", *arguments)


class Info(CliTest):
    def test_json(self):
        info = self.run_json("info")
        self.assertRegex(info["version"], r"^\d+\.\d+\.\d+$")
        backends = {backend["name"]: backend for backend in info["backends"]}
        for name in ("cpu", "reference"):
            self.assertTrue(backends[name]["available"])
        for backend in info["backends"]:
            self.assertTrue(backend["reason"], backend)
        packed = {layout["form"]: layout for layout in info["layouts"]}["packed"]
        self.assertEqual(packed["page_bytes"], 41216)
        self.assertEqual([plane["offset"] for plane in packed["planes"]], [0, 32768, 40960])

    def test_text(self):
        text = self.run_ok("info")
        for word in ("cpu", "reference", "snapmla.e4m3.token.v1", "644"):
            self.assertIn(word, text)


class Usage(CliTest):
    def test_help_documents_exit_codes(self):
        for command in ([], ["decode"], ["explain"], ["info"]):
            self.assertIn("Exit codes: 0", self.run_ok(*command, "--help"))

    def test_version(self):
        self.assertEqual(self.run_ok("--version"),
                         f"snapmla {self.run_json('info')['version']}\n")

    def test_no_or_unknown_command(self):
        self.check_refused(2, ["no command", "Subcommands:"])
        self.check_refused(2, ["fly"], "fly")


if __name__ == "__main__":
    unittest.main()
