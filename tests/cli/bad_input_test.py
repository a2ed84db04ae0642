"""Every kind of broken input gives one clear error, the documented exit code, and writes nothing."""
import json
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

    def testWeightsThatAreNotNumbersGiveAnErrorAndNoNaN(self):
        model = self.copy_of_model()
        header, data = support.read_header(model / "model.safetensors")
        at = header["scale_shift.scale"]["data_offsets"][0]
        data = data[:at] + struct.pack("<d", float("nan")) + data[at + 8:]
        support.write_header(model / "model.safetensors", header, data)
        for options in ([], ["--json"]):
            result = self.run_program("eval", "--model", model, "--use-fast", "false", *options, WATER)
            self.assertIn(result.status, (4, 10), result.err)
            self.assertEqual(result.out, "")


if __name__ == "__main__":
    support.main()
