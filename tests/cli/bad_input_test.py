"""Every kind of broken input gives one clear error, the documented exit code, and writes nothing."""
import json
import os
import struct

import support

WATER = support.DATA / "water8.xyz"
MOLECULE = "3\nProperties=species:S:1:pos:R:3\nO 0 0 0\nH 0.96 0 0\nH -0.24 0.93 0\n"


class BadStructure(support.ProgramTest):
    def refuse(self, code, content, *naming):
        source = self.file("bad.xyz", content)
        for json_flag in ([], ["--json"]):
            self.fail_with(code, "eval", "--model", support.MODEL, *json_flag, "--output", "out.xyz", source,
                           naming=["bad.xyz", *naming])
            self.assertFalse((self.folder / "out.xyz").exists())

    def testTruncated(self):
        whole = WATER.read_text()
        lines = whole.splitlines()
        self.refuse("bad_file", "\n".join(lines[:10]) + "\n", "24")
        self.refuse("bad_file", lines[0] + "\n")
        self.refuse("bad_file", whole[:whole.rindex(" ")])

    def testLyingAboutItsSize(self):
        self.refuse("bad_file", MOLECULE.replace("3\n", "4\n", 1), "4")
        self.refuse("bad_file", MOLECULE.replace("3\n", "2\n", 1))
        self.refuse("bad_file", MOLECULE.replace("3\n", "9223372036854775807\n", 1))
        self.refuse("bad_file", MOLECULE.replace("3\n", "99999999999999999999\n", 1))
        self.refuse("bad_file", MOLECULE.replace("3\n", "-3\n", 1))
        self.refuse("bad_file", MOLECULE.replace("pos:R:3", "pos:R:4000000000"))

    def testEmpty(self):
        self.refuse("bad_file", "")
        self.refuse("bad_file", "\n\n")
        self.refuse("bad_file", "0\nProperties=species:S:1:pos:R:3\n", "no atoms")
        self.refuse("bad_file", MOLECULE + "0\n\n", "frame 2", "no atoms")

    def testGarbage(self):
        self.refuse("bad_file", bytes(range(256)) * 64)
        self.refuse("bad_file", "x" * 100000)
        self.refuse("bad_file", MOLECULE.replace("0.96", "0.9.6"))
        self.refuse("bad_file", MOLECULE.replace("Properties=", 'Lattice="1 2" Properties='))
        self.refuse("bad_file", MOLECULE.replace("Properties=", 'title="never closed Properties='))
        self.refuse("bad_file", MOLECULE.replace("pos:R:3", "position:R:3"))

    def testPositionsThatAreNotNumbers(self):
        for word in ("nan", "NaN", "inf", "-Infinity", "1e999"):
            self.refuse("bad_file", MOLECULE.replace("0.96", word))

    def testUnknownSpecies(self):
        self.refuse("bad_file", MOLECULE.replace("O 0 0 0", "Qq 0 0 0"), "Qq")
        self.refuse("invalid_argument", MOLECULE.replace("O 0 0 0", "Xe 0 0 0"), "Xe")
        self.refuse("invalid_argument", MOLECULE.replace("O 0 0 0", "X 0 0 0"), "X")

    def testOverlappingAtoms(self):
        self.refuse("invalid_argument", MOLECULE.replace("H 0.96 0 0", "H 0 0 0"))
        periodic = MOLECULE.replace("Properties=", 'Lattice="5 0 0 0 5 0 0 0 5" Properties=')
        self.refuse("invalid_argument", periodic.replace("H 0.96 0 0", "H 5 0 5"))

    def testCellsWithoutVolume(self):
        def with_lattice(lattice):
            return MOLECULE.replace("Properties=", f'Lattice="{lattice}" pbc="T T T" Properties=')

        self.refuse("bad_file", with_lattice("0 0 0 0 5 0 0 0 5"), "lattice vector is zero")
        self.refuse("bad_file", with_lattice("nan 0 0 0 5 0 0 0 5"), "nan")
        for flat in ("5 0 0 5 0 0 0 0 5", "5 0 0 0 5 0 5 5 0"):
            self.refuse("invalid_argument", with_lattice(flat), "linearly dependent")

    def testMissingOrNoFile(self):
        arguments = ["eval", "--model", support.MODEL, "--output", "out.xyz"]
        self.fail_with("not_found", *arguments, "absent.xyz", naming=["absent.xyz"])
        self.fail_with("io", *arguments, self.folder, naming=[self.folder, "directory"])

    def testAHeadThatTheModelLacks(self):
        self.fail_with("invalid_argument", "eval", "--model", support.MODEL, "--head", "mp_pbe", WATER,
                       naming=["mp_pbe", "default"])

    def testAFrameWhoseHeadIsNoHeadOfTheModel(self):
        # A number or a truth value is a name too, or an error; never "none was given".
        for head in ("foo", "1", "[a,b]", '"1 2"', "T", "1.5"):
            with self.subTest(head=head):
                self.refuse("invalid_argument", MOLECULE.replace("Properties=", f"head={head} Properties="), "head")
        self.fail_with("invalid_argument", "eval", "--model", support.MODEL, "--head", "", WATER, naming=["--head"])

    def testACellTooLongToHaveAVolume(self):
        for length in ("1e150", "1e300"):
            cell = f'Lattice="{length} 0 0 0 {length} 0 0 0 {length}" Properties='
            self.refuse("invalid_argument", MOLECULE.replace("Properties=", cell), "cell vector a", "length")

    def testATextWithoutEndIsRefusedBeforeTheMemoryIs(self):
        result = self.with_memory(512 << 20, "eval", "--model", support.MODEL, "/dev/zero")
        self.assertEqual((result.status, result.out), (8, ""), result.err)
        self.assertRegex(result.err, r"^fastpath: error: /dev/zero: no memory for its text, of which \d{8,} bytes")

    def testFilesThatMayNotBeRead(self):
        arguments = ["eval", "--model", support.MODEL]
        hidden = self.file("hidden/in.xyz", MOLECULE)
        self.file("in.xyz", MOLECULE).chmod(0)
        hidden.parent.chmod(0)
        self.addCleanup(hidden.parent.chmod, 0o700)
        for file in ("in.xyz", hidden):
            self.fail_unprivileged("io", *arguments, file, naming=[file, "Permission denied"])
        self.fail_unprivileged("io", *arguments, "--output", self.folder / "hidden" / "out.xyz", WATER,
                               naming=["Permission denied"])

    def testNamesOfFilesCannotBreakTheMessage(self):
        no_text = [b.decode(errors="surrogateescape") for b in (b"\xff", b"\xed\xa0\x80", b"\xe0\x80\xaf")]
        for name in ("a\nsecond line", "\x1b[31mred", *no_text):
            with self.subTest(name=name):
                result = self.fail_with("not_found", "eval", "--model", support.MODEL, name, naming=["\\x"])
                self.assertTrue(result.err.rstrip("\n").isprintable(), result.err)

    def testADeviceThatIsNotThere(self):
        self.fail_with("invalid_argument", "eval", "--model", support.MODEL, "--device", "cuda:0", "--use-fast",
                       "false", WATER, naming=["cuda:0", "CPU"])
        self.fail_with("unavailable", "eval", "--model", support.MODEL, "--device", "hip:7", "--use-fast", "true",
                       WATER, naming=["hip:7", "cpu"])


class BadModel(support.ProgramTest):
    def refuse(self, code, model, *naming):
        return self.fail_with(code, "eval", "--model", model, "--output", "out.xyz", WATER, naming=naming)

    def config(self, change):
        folder = self.folder / "model"
        if not folder.exists():
            self.copy_of_model()
        config = json.loads((support.MODEL / "config.json").read_text())
        change(config)
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    def testFolderOrFileThatIsMissing(self):
        self.refuse("not_found", self.folder / "absent", "absent")
        for name in ("config.json", "model.safetensors"):
            model = self.copy_of_model()
            (model / name).unlink()
            self.refuse("not_found", model, name)
            for file in model.iterdir():
                file.unlink()
            model.rmdir()

    def testConfigThatIsNoJsonObject(self):
        model = self.copy_of_model()
        for content in ("", "{", "[]", "null", '{"format": "fastpath-model"', "{} trailing", b"\xff\xfe{}"):
            self.file("model/config.json", content)
            self.refuse("bad_file", model, "config.json")
        self.file("model/config.json", "[" * 100000)
        self.refuse("bad_file", model, "config.json")

    def testConfigThatIsNoSmallRegularFile(self):
        model = self.copy_of_model()
        for name in ("config.json", "model.safetensors"):
            whole = (model / name).read_bytes()
            (model / name).unlink()
            (model / name).mkdir()
            self.refuse("io", model, name, "directory")
            (model / name).rmdir()
            os.mkfifo(model / name)
            self.refuse("io", model, name, "pipe")
            (model / name).unlink()
            (model / name).symlink_to("/dev/zero")
            self.refuse("io", model, name, "device")
            (model / name).unlink()
            (model / name).write_bytes(whole)
        with (model / "config.json").open("ab") as file:
            file.truncate(1 << 30)
        self.refuse("bad_file", model, "config.json", "more than")

    def testFilesOfAModelThatMayNotBeRead(self):
        model = self.copy_of_model()
        for path in (model / "config.json", model / "model.safetensors", model):
            path.chmod(0)
            self.fail_unprivileged("io", "eval", "--model", model, WATER, naming=[path, "Permission denied"])
            path.chmod(0o755)
        self.env["FASTPATH_HUB"] = str(self.folder / "hub")
        (self.folder / "hub").mkdir(mode=0)
        self.fail_unprivileged("io", "eval", "--model", "water", WATER, naming=["hub/water", "Permission denied"])

    def testConfigThatIsDeepLongOrGoesOnBehindAZero(self):
        model = self.copy_of_model()
        whole = (support.MODEL / "config.json").read_text()
        deep = "[" * 200000 + "]" * 200000
        objects = '{"a":' * 200000 + "1" + "}" * 200000
        keys = ",".join(f'"k{i}":{i}' for i in range(50000))
        cases = {
            "deep value": (whole.replace('"r_max": 5.0', f'"r_max": {deep}'), "nested"),
            "deep object": (whole.replace('"r_max": 5.0', f'"r_max": {objects}'), "nested"),
            "deep unknown key": (whole.replace('"r_max"', f'"x": {deep}, "r_max"'), "nested"),
            "many keys": (whole.replace('"format"', f'{keys}, "format"', 1), "keys"),
            "behind a zero": (whole + "\0garbage", "zero"),
            "long text": (whole.replace('"silu"', '"' + "x" * 1000000 + '"'), "gate"),
            "long block": (whole.replace('"RealAgnosticInteractionBlock"', '"' + "x" * 1000000 + '"'), "interaction"),
            "long irreps": (whole.replace('"8x0e+8x1o"', '"' + "8x0e+" * 100000 + '"', 1), "hidden_irreps"),
            "text that is no JSON": (whole.replace('"silu"', '"silu' + "x" * 1000000), "JSON"),
        }
        for what, (content, naming) in cases.items():
            with self.subTest(what=what):
                self.assertNotEqual(content, whole)
                self.file("model/config.json", content)
                result = self.refuse("bad_file", model, "config.json", naming)
                self.assertLess(len(result.err), 2000)

    def testAConfigOfAFarLargerModelTakesNoMemoryForIt(self):
        def wide(config):
            config["radial_mlp"] = [65536] * 30

        def high(config):
            config.update(l_max=11, correlation=4)
            del config["convolutions"]

        for change, naming in ((wide, "values"), (high, "U_matrix_4")):
            with self.subTest(change=change.__name__):
                result = self.with_memory(2 << 30, "eval", "--model", self.config(change), WATER)
                self.assertEqual((result.status, result.out), (4, ""), result.err)
                self.assertIn(naming, result.err)

    def testConfigValuesOfTheWrongType(self):
        wrong = {
            "format": "other", "format_version": 2, "architecture": "gcn", "dtype": "float16",
            "atomic_numbers": [1, 6, "O"], "r_max": "5", "num_bessel": -1, "polynomial_cutoff_p": 5.5,
            "radial_type": "chebyshev", "distance_transform": 1, "pair_repulsion": "no", "radial_mlp": 64, "l_max": 99,
            "hidden_irreps": "8x0q", "num_interactions": 0, "correlation": [3], "interaction_first": "NoSuchBlock",
            "interaction": 7, "mlp_irreps": "16x1o", "gate": "relu", "activation_constant": None,
            "avg_num_neighbors": 0, "heads": [], "reduced_cg": 1, "convolutions": {},
        }
        for key, value in wrong.items():
            with self.subTest(key=key):
                def change(config):
                    config[key] = value
                self.refuse("bad_file", self.config(change), "config.json", key)

    def testEveryUnknownAndMissingKeyIsListedAtOnce(self):
        def change(config):
            config["colour"] = 1
            config["taste"] = 2
            del config["r_max"]
            del config["l_max"]
        self.refuse("bad_file", self.config(change), "colour", "taste", "r_max", "l_max")

    def testTensorsThatAreMissingUnexpectedOrMisshapenAreAllListed(self):
        model = self.copy_of_model()
        header, data = support.read_header(model / "model.safetensors")
        tensors = {("renamed" if name == "interactions.0.linear.weight" else name): entry
                   for name, entry in header.items()}
        tensors["interactions.1.linear.weight"]["shape"] = [2, 320]
        support.write_header(model / "model.safetensors", tensors, data)
        self.refuse("bad_file", model, "interactions.0.linear.weight", "renamed", "interactions.1.linear.weight")

    def testTruncatedOversizedAndLyingTensorFiles(self):
        whole = (support.MODEL / "model.safetensors").read_bytes()
        header, data = support.read_header(support.MODEL / "model.safetensors")
        model = self.copy_of_model()
        name = "interactions.0.linear.weight"

        def lie(**changes):
            return {**header, name: {**header[name], **changes}}

        begin, end = header[name]["data_offsets"]
        cases = {
            "empty": b"",
            "four bytes": whole[:4],
            "half": whole[:len(whole) // 2],
            "one byte short": whole[:-1],
            "one byte long": whole + b"\0",
            "huge header": struct.pack("<Q", 1 << 62) + whole[8:],
            "header beyond the end": struct.pack("<Q", len(whole)) + whole[8:],
            "header that is no JSON": struct.pack("<Q", 8) + b"no json!",
            "wrong shape": (lie(shape=[257]), data),
            "huge shape": (lie(shape=[1 << 62, 1 << 62]), data),
            "negative shape": (lie(shape=[-256]), data),
            "unknown dtype": (lie(dtype="F7"), data),
            "offsets beyond the end": (lie(data_offsets=[begin, 1 << 60]), data),
            "offsets reversed": (lie(data_offsets=[end, begin]), data),
            "offsets that overlap": (lie(data_offsets=[begin - 8, end - 8]), data),
            "offsets that are no numbers": (lie(data_offsets=["0", "8"]), data),
        }
        for what, content in cases.items():
            with self.subTest(what=what):
                if isinstance(content, bytes):
                    (model / "model.safetensors").write_bytes(content)
                else:
                    support.write_header(model / "model.safetensors", *content)
                self.refuse("bad_file", model, "model.safetensors")
                self.assertFalse((self.folder / "out.xyz").exists())

    def testWeightsThatAreNotNumbersAreNamed(self):
        model = self.copy_of_model()
        header, data = support.read_header(support.MODEL / "model.safetensors")
        for name in ("scale_shift.scale", "interactions.0.linear.weight", "atomic_energies_fn.atomic_energies",
                     "products.0.symmetric_contractions.contractions.0.U_matrix_3"):
            for value in ("nan", "-inf"):
                with self.subTest(name=name, value=value):
                    self.assertEqual(header[name]["dtype"], "F64")
                    at = header[name]["data_offsets"][0]
                    support.write_header(model / "model.safetensors", header,
                                         data[:at] + struct.pack("<d", float(value)) + data[at + 8:])
                    self.refuse("bad_file", model, "model.safetensors", "not finite", name)

    def testResultsThatAreNotNumbersAreAnErrorAndNoText(self):
        model = self.copy_of_model()
        header, data = support.read_header(model / "model.safetensors")
        begin, end = header["readouts.0.linear.weight"]["data_offsets"]
        huge = struct.pack("<d", 1e308) * ((end - begin) // 8)
        support.write_header(model / "model.safetensors", header, data[:begin] + huge + data[end:])
        for options in ([], ["--json"]):
            self.fail_with("numerics", "eval", "--model", model, "--use-fast", "false", "--output", "out.xyz",
                           *options, WATER, naming=["water8.xyz", "finite"])
            self.assertFalse((self.folder / "out.xyz").exists())

    def testAHeaderThatGoesOnBehindAZero(self):
        whole = (support.MODEL / "model.safetensors").read_bytes()
        size = struct.unpack("<Q", whole[:8])[0]
        text = whole[8:8 + size] + b"\0garbage"
        model = self.copy_of_model()
        (model / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + whole[8 + size:])
        self.refuse("bad_file", model, "model.safetensors", "zero")

    def testNamesOfTensorsCannotBreakTheMessage(self):
        header, data = support.read_header(support.MODEL / "model.safetensors")
        model = self.copy_of_model()
        extra = {"dtype": "F64", "shape": [0], "data_offsets": [len(data), len(data)]}
        for names in (["\x1b[31m\nsecond line"], ["n" * 100000], [f"x{i}" for i in range(20000)]):
            support.write_header(model / "model.safetensors", {**header, **{name: extra for name in names}}, data)
            result = self.refuse("bad_file", model, "unexpected")
            self.assertLess(len(result.err), 10000)

    def testTheTwoFilesOfAModelMustAgree(self):
        header, data = support.read_header(support.MODEL / "model.safetensors")
        model = self.copy_of_model()
        for name in ("r_max", "radial_embedding.bessel_fn.r_max", "radial_embedding.cutoff_fn.r_max"):
            at = header[name]["data_offsets"][0]
            support.write_header(model / "model.safetensors", header,
                                 data[:at] + struct.pack("<d", 3.0) + data[at + 8:])
            self.refuse("bad_file", model, name, "3", "5")


if __name__ == "__main__":
    support.main()
