#!/usr/bin/env python3
"""Tries scripts/convert_mace.py on random models of the package, by hand: it needs mace-torch.

    V/bin/python tests/convert/packages.py [--fastpath PROGRAM] [--only TEXT]

A model of every block and setting that a model folder can hold is made, saved in each form that the package knows, and
converted; those that it cannot hold must be refused by name, without a trace. It prints a table of the largest
differences that the converter found, and exits with 1 if anything is not as it should be. Models with a reduced basis
need the package cuequivariance-torch, else they are skipped, which is said.
"""

import argparse
import contextlib
import copy
import importlib.util
import io
import json
import os
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests" / "data" / "models_b")]

import convert_mace  # noqa: E402

torch, modules = convert_mace.import_package()
import make  # noqa: E402
import numpy as np  # noqa: E402
from e3nn import o3  # noqa: E402
from e3nn.util import jit  # noqa: E402

BASE = {"r_max": 4.0, "num_bessel": 5, "num_polynomial_cutoff": 5, "max_ell": 2, "num_interactions": 2,
        "hidden_irreps": "6x0e+6x1o", "MLP_irreps": "4x0e", "avg_num_neighbors": 7.5, "atomic_numbers": [1, 6, 8],
        "correlation": 3, "radial_MLP": [8, 8], "use_reduced_cg": False,
        "interaction_cls_first": make.BLOCK.format(""), "interaction_cls": make.BLOCK.format("Residual")}
FOUNDATION = {"atomic_numbers": list(range(1, 90)), "hidden_irreps": "32x0e+32x1o", "max_ell": 3, "num_bessel": 10,
              "r_max": 6.0, "MLP_irreps": "16x0e", "radial_MLP": [64, 64, 64]}


def block(first, other):
    return {"interaction_cls_first": make.BLOCK.format(first), "interaction_cls": make.BLOCK.format(other)}


# name: what differs from BASE; "kind", "heads", "dtype", "trained" and "form" are said to made() and saved().
GOOD = {
    "plain block, then Residual": {},
    "Residual": block("Residual", "Residual"),
    "Density, then DensityResidual": block("Density", "DensityResidual"),
    "DensityResidual": block("DensityResidual", "DensityResidual"),
    "plain blocks only": block("", ""),
    "Residual, then Density": block("Residual", "Density"),
    "one layer": {"num_interactions": 1, **block("Residual", "Residual")},
    "three layers, degree 2": {"num_interactions": 3, "hidden_irreps": "3x0e+3x1o+3x2e"},
    "scalars only": {"hidden_irreps": "8x0e"},
    "orders 2 and 1": {"correlation": [2, 1]},
    "order 4": {"correlation": 4, "max_ell": 1},
    "last layer keeps its irreps": {"keep_last_layer_irreps": True},
    "Agnesi, ZBL": {"distance_transform": "Agnesi", "pair_repulsion": True},
    "Soft, envelope late": {"distance_transform": "Soft", "apply_cutoff": False, **block("Density", "Density")},
    "three heads": {"heads": ["pbe", "r2scan", "7"], "pair_repulsion": True},
    "MACE, not ScaleShiftMACE": {"kind": "MACE", "pair_repulsion": True},
    "trained frequencies": {"trained": True},
    "radial net without hidden layers": {"radial_MLP": []},
    "stored in float32": {"dtype": torch.float32, "trained": True, "distance_transform": "Agnesi", "r_max": 4.3},
    "reduced basis": {"use_reduced_cg": True},
    "TorchScript": {"form": "script", "distance_transform": "Agnesi", "pair_repulsion": True},
    "TorchScript, float32, two heads": {"form": "script", "dtype": torch.float32, "heads": ["a", "b"]},
    "TorchScript for LAMMPS": {"form": "lammps"},
    "state dict and hyperparameters": {"form": "state", **block("Density", "DensityResidual")},
    "checkpoint of a training run": {"form": "training", "pair_repulsion": True},
    "as MACE-MP-0 medium, 89 elements, float32": {**FOUNDATION, **block("Residual", "Residual"), "dtype": torch.float32},
    "as MACE-MPA-0, 89 elements": {**FOUNDATION, **block("Density", "DensityResidual"), "distance_transform": "Agnesi",
                                   "pair_repulsion": True, "num_polynomial_cutoff": 6},
    "as MACE-OFF small, 10 elements, float32": {
        **block("Residual", "Residual"), "atomic_numbers": [1, 6, 7, 8, 9, 15, 16, 17, 35, 53],
        "hidden_irreps": "32x0e", "max_ell": 3, "num_bessel": 8, "radial_MLP": [64] * 3, "dtype": torch.float32},
}  # fmt: skip
# What is refused, and words that the message must have.
BAD = {
    "attention block": ({"interaction_cls": make.BLOCK.format("AttResidual")}, ["RealAgnosticAttResidual", "supported"]),
    "nonlinear block": ({"interaction_cls": make.BLOCK.format("ResidualNonLinear"), "edge_irreps": "6x0e+6x1o"},
                        ["RealAgnosticResidualNonLinear", "supported"]),
    "Gaussian basis": ({"radial_type": "gaussian"}, ["GaussianBasis", "BesselBasis"]),
    "tanh": ({"gate": "tanh"}, ["tanh", "silu"]),
    "only SO(3)": ({"use_so3": True}, ["use_so3"]),
    "one readout": ({"use_last_readout_only": True}, ["use_last_readout_only"]),
    "product without species": ({"use_agnostic_product": True}, ["use_agnostic_product"]),
    "edge irreps": ({"edge_irreps": "4x0e+4x1o"}, ["linear_up", "edge irreps"]),
    "pseudoscalars": ({"hidden_irreps": "6x0e+6x0o+6x1o"}, ["not supported"]),
    "changed after it was made": ({"form": "corrupted"}, ["does not compute", "forces"]),
}  # fmt: skip


def made(changes):
    """A random model, and the arguments as JSON would hold them."""
    plain = {**BASE, **changes}
    kind, dtype = plain.pop("kind", "ScaleShiftMACE"), plain.pop("dtype", torch.float64)
    trained, _ = plain.pop("trained", False), plain.pop("form", None)
    heads = plain.get("heads", ["Default"])
    plain.setdefault("gate", "silu")
    plain["num_elements"] = len(plain["atomic_numbers"])
    generator = np.random.default_rng(7)
    real = dict(plain)
    for key in ("hidden_irreps", "MLP_irreps", "edge_irreps"):
        if key in real:
            real[key] = o3.Irreps(real[key])
    for key in ("interaction_cls", "interaction_cls_first"):
        real[key] = modules.interaction_classes[real[key]]
    real["gate"] = modules.gate_dict[real["gate"]]
    real["atomic_energies"] = generator.standard_normal((len(heads), real["num_elements"]))
    if kind == "ScaleShiftMACE":
        real["atomic_inter_scale"] = list(1 + generator.random(len(heads)))
        real["atomic_inter_shift"] = list(generator.standard_normal(len(heads)))
    torch.manual_seed(1)
    torch.set_default_dtype(dtype)
    model = getattr(modules, kind)(**real)
    torch.set_default_dtype(torch.float64)
    if trained:
        frequencies = model.radial_embedding.bessel_fn.bessel_weights
        frequencies *= 1 + 0.05 * torch.tensor(generator.standard_normal(len(frequencies)), dtype=dtype)
    return model, {"model": kind, **plain}


def saved(model, arguments, form, folder):
    """Saves a model in one of the forms. The command line of the converter."""
    path = folder / "checkpoint"
    if form in ("script", "lammps"):
        if form == "lammps":
            from mace.calculators import LAMMPS_MACE

            model = LAMMPS_MACE(model)
        jit.compile(copy.deepcopy(model)).save(str(path))
    elif form in ("state", "training"):
        state = model.state_dict()
        torch.save({"model": state, "optimizer": {}, "epoch": 3} if form == "training" else state, path)
        text = folder / "hyperparameters.json"
        text.write_text(json.dumps(arguments))
        return [str(path), "--hyperparameters", str(text)]
    else:
        if form == "corrupted":  # something that no tensor and no setting tells
            model.interactions[1].linear.register_forward_hook(_scaled)
        torch.save(model, path)
    return [str(path)]


def _scaled(_module, _inputs, output):
    return output * 1.0001


def has_reduced_basis(changes):
    """Whether the model has a reduced basis: the package makes one only where cuEquivariance is installed."""
    return changes.get("use_reduced_cg", False)


def run(changes, program):
    """Exit status, standard error, rows of the comparison, what there is now beside the checkpoint."""
    with tempfile.TemporaryDirectory(prefix="convert-") as scratch:
        folder = pathlib.Path(scratch)
        model, arguments = made(changes)
        words = saved(model, arguments, changes.get("form"), folder)
        before = set(folder.iterdir())
        rows = []
        kept = convert_mace.report

        def keep(config, _tensors, found, _output):
            rows.extend(found)
            assert config["reduced_cg"] == has_reduced_basis(changes), "reduced_cg"

        convert_mace.report = keep
        error = io.StringIO()
        try:
            with contextlib.redirect_stderr(error):
                status = convert_mace.main([*words, "--output", str(folder / "model"), "--fastpath", program])
        finally:
            convert_mace.report = kept
        return status, error.getvalue(), rows, set(folder.iterdir()) - before


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fastpath", default=str(ROOT / "build" / "release" / "bin" / "fastpath"))
    parser.add_argument("--only", default="", help="only models whose name has this text")
    arguments = parser.parse_args()
    failures = 0
    print(f"{'model':<44} {'energy':>9} {'energies':>9} {'forces':>9} {'stress':>9}")
    for name, changes in GOOD.items():
        if arguments.only not in name:
            continue
        if changes.get("use_reduced_cg") and importlib.util.find_spec("cuequivariance_torch") is None:
            print(f"{name:<44} skipped: cuequivariance-torch is not installed")
            continue
        status, error, rows, _ = run(changes, arguments.fastpath)
        if status != 0:
            failures += 1
            print(f"{name:<44} FAILED\n{error}")
            continue
        worst = [max((row[3].get(key, 0) for row in rows), default=0)
                 for key in ("energy", "node_energies", "forces", "stress")]
        print(f"{name:<44} " + " ".join(f"{value:9.1e}" for value in worst), flush=True)
    for name, (changes, words) in BAD.items():
        if arguments.only not in name:
            continue
        status, error, _, left = run(changes, arguments.fastpath)
        good = status == 1 and all(word in error for word in words) and not left
        failures += not good
        print(f"{name:<44} {'refused' if good else f'WRONG: status {status}, left {left}'}: {error.strip()[:300]}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
