"""The script that guards the layout of plugin.h must see each kind of change, and say what to do about it."""
import os
import pathlib
import shutil
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "cli")]
import layout  # noqa: E402
import support  # noqa: E402

HEADER = (HERE.parent.parent / "sdk" / "include" / "fastpath" / "plugin.h").read_text()


class AbiGuard(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="fastpath-abi-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.policy = HERE.parent.parent / "docs" / "abi-policy.md"

    def header(self, *changes, text=HEADER):
        for old, new in changes:
            self.assertEqual(text.count(old), 1, old)
            text = text.replace(old, new)
        path = self.folder / "plugin.h"
        path.write_text(text)
        return layout.Header(path)

    def check(self, *changes):
        return layout.check(self.header(*changes), HERE, self.policy, os.environ["FASTPATH_TEST_CC"], "c11")

    def testTheHeaderAsItIsPasses(self):
        self.assertEqual(self.check(), [])

    def testAMemberInTheMiddleNamesThoseThatMovedAndAsksForAVersion(self):
        found = self.check(("  void* scratch; /*", "  void* first;\n  void* scratch; /*"))
        self.assertIn("fp_run_args.scratch: moved from byte 112 to 120", found)
        self.assertIn("fp_run_args.extensions: moved from byte 176 to 184", found)
        self.assertIn("fp_run_args.first: new, 'void* first' at byte 112", found)
        self.assertNotIn("fp_run_args.inputs: moved", "".join(found))
        self.assertIn("is not what plugin_1.0.layout says, and its version is still 1.0: a change must raise "
                      "FP_ABI_MINOR, be recorded in docs/abi-policy.md", found[-1])

    def testAMemberOfAnotherTypeIsNamed(self):
        found = self.check(("  int32_t rank; ", "  uint32_t rank; "))
        self.assertIn("fp_kernel_answer.rank: 'int32_t rank' of 4 bytes became 'uint32_t rank' of 4", found)

    def testAFunctionWithAnotherArgumentIsNamed(self):
        found = self.check(("  void (*destroy)(fp_kernel* kernel);", "  void (*destroy)(fp_kernel* kernel, int32_t now);"))
        self.assertIn("fp_kernel_api.destroy: 'void (*destroy)(fp_kernel*)' of 8 bytes became "
                      "'void (*destroy)(fp_kernel*, int32_t)' of 8", found)

    def testTheNameOfAParameterMayChange(self):
        self.assertEqual(self.check(("  void (*destroy)(fp_kernel* kernel);", "  void (*destroy)(fp_kernel* which);")), [])

    def testAMemberThatIsGoneIsNamed(self):
        found = self.check(("  uint64_t saved_bytes;\n  fp_stream* stream;", "  fp_stream* stream;"))
        self.assertIn("fp_run_args.saved_bytes: gone, was 'uint64_t saved_bytes' at byte 136", found)

    def testAConstantOfAnotherValueIsNamed(self):
        self.assertIn("FP_E_BUSY: -6 became -10", self.check(("FP_E_BUSY = -6", "FP_E_BUSY = -10")))

    def testAMemberAtTheEndStillNeedsAVersion(self):
        found = self.check(("  const fp_extension* extensions;\n} fp_host;",
                            "  const fp_extension* extensions;\n  uint64_t later;\n} fp_host;"),
                           ("FP_END_OF(fp_host, extensions)", "FP_END_OF(fp_host, later)"))
        self.assertIn("fp_host.later: new, 'uint64_t later' at byte 88", found)
        self.assertIn("raise FP_ABI_MINOR", found[-1])

    def testANewVersionNeedsARecordAndALineOfThePolicy(self):
        found = self.check(("#define FP_ABI_MINOR 0u", "#define FP_ABI_MINOR 1u"))
        self.assertIn("plugin_1.1.layout is not there", found[0])
        self.assertIn("abi-policy.md has no line for ABI 1.1", found[-1])

    def next_version(self, *changes):
        """A version 1.1 with a record and a line in the policy, as someone who follows the steps leaves it."""
        records = self.folder / "records"
        records.mkdir()
        shutil.copy(HERE / "plugin_1.0.layout", records)
        header = self.header(("#define FP_ABI_MINOR 0u", "#define FP_ABI_MINOR 1u"), *changes)
        layout.main("write", header.path, records, os.environ["FASTPATH_TEST_CC"], "c11")
        policy = self.folder / "abi-policy.md"
        policy.write_text(self.policy.read_text() + "| 1.1 | a test | |\n")
        return layout.check(header, records, policy, os.environ["FASTPATH_TEST_CC"], "c11")

    def testANewVersionThatAppendsPasses(self):
        self.assertEqual(self.next_version(("  const fp_extension* extensions;\n} fp_host;",
                                            "  const fp_extension* extensions;\n  uint64_t later;\n} fp_host;"),
                                           ("FP_END_OF(fp_host, extensions)", "FP_END_OF(fp_host, later)")), [])

    def testANewVersionThatMovesAMemberBreaksPluginsOfTheOldOne(self):
        found = self.next_version(("  void* scratch; /*", "  void* first;\n  void* scratch; /*"))
        self.assertIn("against ABI 1.0: fp_run_args.scratch: moved from byte 112 to 120", found)
        self.assertIn("plugins built for ABI 1.0 would misread this host", found[-1])

    def testPaddingThatIsNotWrittenDownIsNamed(self):
        found = self.check(("  uint32_t struct_size;\n  uint32_t reserved;\n  void* context;\n  void (*report)",
                            "  uint32_t struct_size;\n  void* context;\n  void (*report)"))
        self.assertIn("fp_error_sink: 4 bytes of padding before context; a reserved member belongs there", found)

    def testASizeConstantThatForgetsTheLastMemberIsNamed(self):
        found = self.check(("FP_END_OF(fp_sizes, n_rows)", "FP_END_OF(fp_sizes, n_receivers)"))
        self.assertIn("fp_sizes ends at byte 40, its FP_SIZE_ constant says 32", found)

    def testAStructThatDoesNotStartWithItsSizeIsFound(self):
        swapped = ("typedef struct fp_native {\n  uint32_t struct_size;\n  int32_t kind;",
                   "typedef struct fp_native {\n  int32_t kind;\n  uint32_t struct_size;")
        self.assertEqual(layout.lint(self.header(swapped)), ["fp_native starts with int32_t kind, expected uint32_t struct_size"])
        added = ("typedef struct fp_plugin fp_plugin;",
                 "typedef struct fp_plugin fp_plugin;\ntypedef struct fp_hint {\n  uint64_t value;\n} fp_hint;")
        self.assertEqual(layout.lint(self.header(added)),
                         ["fp_hint starts with uint64_t value, expected uint32_t struct_size",
                          "fp_hint has no constant FP_SIZE_HINT"])

    def testTypesWithoutAFixedWidthAreFound(self):
        for kind in ("bool", "long", "size_t", "int", "unsigned char", "float"):
            found = layout.lint(self.header(("  uint32_t dtypes;       /* FP_DTYPE_BIT_* that", f"  {kind} dtypes; /* that")))
            self.assertEqual(found, [f"fp_device_info.dtypes uses '{kind}': neither of fixed width nor a pointer to one of ours"])
        found = layout.lint(self.header(("  int32_t capturing; ", "  int32_t capturing : 1; ")))
        self.assertEqual(len(found), 1, found)
        self.assertIn("fp_run_args.", found[0])
        found = layout.lint(self.header(("  int32_t (*thread_budget)(void* context);", "  int32_t (*thread_budget)(size_t context);")))
        self.assertIn("fp_host.thread_budget uses 'size_t'", "".join(found))


if __name__ == "__main__":
    support.main()
