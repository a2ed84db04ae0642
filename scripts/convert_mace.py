#!/usr/bin/env python3
"""Converts a MACE checkpoint to a model folder of fastpath.

    scripts/convert_mace.py CHECKPOINT --output DIR

CHECKPOINT is a file that the package mace-torch can load:

  * a model saved whole, as training writes it (NAME.model) and as foundation models are published;
  * one compiled to TorchScript (NAME_compiled.model), also with the wrapper for LAMMPS around it (NAME-lammps.pt);
  * weights alone (a state dict, or NAME_epoch-10.pt of a training run) with --hyperparameters FILE.json: the arguments
    that the package's ScaleShiftMACE (or MACE, with "model": "MACE") is made with, under the package's own names;
    "interaction_cls", "interaction_cls_first" and "gate" are texts there, such as
    "RealAgnosticResidualInteractionBlock" and "silu".

DIR becomes a model folder: config.json and model.safetensors, with the tensors as the checkpoint has them, under their
names, and a README.md that says where it comes from. It must not exist, or be empty. `fastpath hub add DIR` makes it a
model that can be named.

Before anything is written the new model is compared with the package: energies, energies of atoms, forces and stress of
random structures that contain every element, periodic in three, two and no directions, for every head, in float64. If
they differ by more than --tolerance, nothing is left behind. A checkpoint stored in float32 keeps its rounded weights,
frequencies and coupling matrices; for the comparison only the package's Clebsch-Gordan constants, which it rounds too
and which fastpath computes, are made anew.

What fastpath cannot evaluate is an error that names all of it. Supported are MACE and ScaleShiftMACE with the blocks
RealAgnosticInteractionBlock, RealAgnosticResidualInteractionBlock, RealAgnosticDensityInteractionBlock and
RealAgnosticDensityResidualInteractionBlock; Bessel functions, trained or not; Agnesi and Soft transforms; ZBL pair
repulsion; one or several heads; full and reduced coupling bases; SiLU.

It needs mace-torch and what that brings (try: python3 -m venv V && V/bin/pip install mace-torch, then run this script
with V/bin/python), and the program fastpath. Loading a checkpoint runs code that stands in it: convert only files whose
origin you trust.

Exit status: 0 converted; 1 not supported, or the comparison failed; 2 wrong usage; 3 something is not installed.
"""

import argparse
import contextlib
import hashlib
import importlib.metadata
import io
import json
import math
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from compared_structures import as_xyz, neighbours, random_structures  # noqa: E402
from mace_folder import (BLOCKS, MODELS, SETTINGS, SILU_CONSTANT, Failure, Stored, Unsupported, check_output,  # noqa: E402
                         derive, new_folder, plain_irreps, write_folder)


def difference(found, expected):
    """max|found - expected| / max|expected|; infinite where shapes differ or something is not a number."""
    def flat(value):
        return [x for item in value for x in flat(item)] if isinstance(value, list) else [value]

    a, b = flat(found), flat(expected)
    if len(a) != len(b) or not all(isinstance(x, (int, float)) and math.isfinite(x) for x in a + b):
        return math.inf
    worst, largest = max((abs(x - y) for x, y in zip(a, b)), default=0.0), max((abs(x) for x in b), default=0.0)
    return worst / largest if largest > 0 else (0.0 if worst == 0 else math.inf)


def run_fastpath(program, folder, xyz, head):
    """What the program computes by its reference in float64, one result per frame."""
    with tempfile.TemporaryDirectory(prefix="convert-mace-") as scratch:
        path = pathlib.Path(scratch) / "structures.xyz"
        path.write_text(xyz, encoding="utf-8")
        command = [program, "eval", "--model", str(folder), "--use-fast", "false", "--dtype", "float64", "--json",
                   "--head", head, str(path)]
        environment = {key: value for key, value in os.environ.items() if key not in ("FASTPATH_STRICT",)}
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                              env=environment)
    if done.returncode != 0:
        raise Failure(f"fastpath does not take the model: {done.stderr.strip()}")
    return json.loads(done.stdout)["frames"]


def import_package():
    warnings.simplefilter("ignore")  # of the package's own loading
    try:
        import mace  # noqa: F401  first: it tells torch that whole models may be loaded
        import torch
        from mace import modules
    except ImportError as error:
        raise Failure(f"{error}; install the package: python3 -m venv V && V/bin/pip install mace-torch, and run this "
                      "script with V/bin/python", 3) from None
    return torch, modules


def class_name(module):
    return getattr(module, "original_name", None) or type(module).__name__


def children(module):
    return dict(module.named_children())


def make_from_hyperparameters(text, state, torch, modules):
    from e3nn import o3

    arguments = dict(text)
    kind = arguments.pop("model", "ScaleShiftMACE")
    if kind not in MODELS:
        raise Unsupported([f"the model's class is {kind}; supported: {', '.join(MODELS)}"])
    for key in ("interaction_cls", "interaction_cls_first"):
        name = arguments.get(key)
        if isinstance(name, str):
            if name not in modules.interaction_classes:
                raise Failure(f"hyperparameters: {key} is {name}; the package knows: "
                              f"{', '.join(modules.interaction_classes)}")
            arguments[key] = modules.interaction_classes[name]
    for key in ("hidden_irreps", "MLP_irreps", "edge_irreps"):
        if isinstance(arguments.get(key), str):
            arguments[key] = o3.Irreps(arguments[key])
    if isinstance(arguments.get("gate"), str):
        arguments["gate"] = modules.gate_dict[arguments["gate"]]
    for key, name in (("atomic_energies", "atomic_energies_fn.atomic_energies"),
                      ("atomic_inter_scale", "scale_shift.scale"), ("atomic_inter_shift", "scale_shift.shift")):
        if name in state:
            arguments[key] = state[name].numpy()
    if "atomic_numbers" in state:
        arguments.setdefault("atomic_numbers", [int(z) for z in state["atomic_numbers"]])
        arguments.setdefault("num_elements", len(arguments["atomic_numbers"]))
    floating = next(tensor.dtype for tensor in state.values() if tensor.is_floating_point())
    torch.set_default_dtype(floating)
    try:
        model = getattr(modules, kind)(**arguments)
        model.load_state_dict(state, strict=True)
    except (TypeError, RuntimeError, KeyError, AttributeError) as error:
        raise Failure(f"the package cannot make a {kind} of these hyperparameters and weights: {error}") from None
    finally:
        torch.set_default_dtype(torch.float64)
    return model


def load(path, hyperparameters, torch, modules):
    """A function that gives the model of a file, anew at each call."""
    if not os.path.isfile(path):
        raise Failure(f"{path}: there is no such file", 2)
    try:
        found = torch.jit.load(path, map_location="cpu")
    except (RuntimeError, ValueError):  # not TorchScript
        try:
            found = torch.load(path, map_location="cpu", weights_only=False)
        except Exception as error:  # whatever the pickle raises
            raise Failure(f"{path}: the package cannot load it: {type(error).__name__}: {error}") from None
    if isinstance(found, dict):
        state = next((found[key] for key in ("model", "state_dict", "model_state_dict") if isinstance(
            found.get(key), dict)), found)
        config = hyperparameters if hyperparameters is not None else found.get("config")
        if not state or not all(torch.is_tensor(tensor) for tensor in state.values()):
            raise Failure(f"{path}: holds a dict of {', '.join(map(str, list(found)[:8]))}; expected a model, or a state "
                          "dict, alone or under 'model' or 'state_dict'")
        if not isinstance(config, dict):
            raise Failure(f"{path}: holds weights alone; --hyperparameters FILE.json must say of which model", 2)
        found = make_from_hyperparameters(config, state, torch, modules)
    elif hyperparameters is not None:
        raise Failure(f"{path}: holds a whole model; --hyperparameters is for weights alone", 2)
    if not isinstance(found, torch.nn.Module):
        raise Failure(f"{path}: holds a {type(found).__name__}; expected a model or a state dict")
    if class_name(found).startswith("LAMMPS") and "model" in children(found):
        found = children(found)["model"]
    return found.cpu().eval()


def activation(function, torch):
    """("silu", constant) of an activation, whatever it is wrapped in; (its name, None) if it is another one."""
    x = torch.tensor([-3.0, -1.1, -0.4, 0.3, 0.9, 2.2], dtype=torch.float64)
    ratio = function(x) / torch.nn.functional.silu(x)
    constant = float(ratio.mean())
    if float((ratio - constant).abs().max()) > 1e-12 * abs(constant):
        inner = getattr(function, "f", function)
        return getattr(inner, "__name__", class_name(function)), None
    exact = getattr(function, "cst", None)
    for known in (exact, SILU_CONSTANT, 1.0):
        if known is not None and abs(constant - float(known)) < 1e-13:
            return "silu", float(known)
    return "silu", constant


def facts_of(model, torch):
    """The facts that derive() needs, of a model of the package, scripted or not."""
    parts = children(model)

    def get(module, name, default):
        value = getattr(module, name, default)
        return default if value is None else value

    activations, interactions = {}, []
    for t, block in sorted(children(parts["interactions"]).items(), key=lambda item: int(item[0])):
        inside = children(block)
        net = inside.get("conv_tp_weights")
        for name, module in net.named_modules() if net is not None else ():
            if class_name(module) == "normalize2mom":
                activations[f"interactions.{t}.conv_tp_weights.{name}"] = activation(module, torch)
        conv = inside.get("conv_tp")
        paths = getattr(conv, "instructions", None)
        convolution = None
        if paths is not None:
            irreps = (conv.irreps_in1, conv.irreps_in2, conv.irreps_out)
            convolution = dict(zip(("irreps_in", "irreps_edge", "irreps_out"), map(plain_irreps, irreps)))
            convolution["instructions"] = [[int(index) for index in path[:3]] for path in paths]
        interactions.append({"block": class_name(block), "radial_net": class_name(net),
                             "avg_num_neighbors": getattr(block, "avg_num_neighbors", None),
                             "convolution": convolution})
        if class_name(block) in BLOCKS and class_name(conv) != "TensorProduct":
            raise Unsupported([f"interactions.{t}.conv_tp is {class_name(conv)}, of an accelerated package; convert the "
                               "checkpoint back first (mace.cli.convert_cueq_e3nn, mace.cli.convert_oeq_e3nn)"])
        if interactions[-1]["avg_num_neighbors"] is None:
            raise Unsupported([f"interactions.{t} has no avg_num_neighbors"])
    readouts = []
    for t, readout in sorted(children(parts["readouts"]).items(), key=lambda item: int(item[0])):
        readouts.append(class_name(readout))
        acts = children(readout).get("non_linearity")
        for name, module in acts.named_modules() if acts is not None else ():
            if class_name(module) == "normalize2mom":
                activations[f"readouts.{t}.non_linearity.{name}"] = activation(module, torch)
    radial = children(parts["radial_embedding"])
    transform = radial.get("distance_transform")
    return {
        "model": class_name(model), "children": {name: class_name(part) for name, part in parts.items()},
        "settings": {name: getattr(model, name) for name in SETTINGS if hasattr(model, name)},
        "heads": list(get(model, "heads", ["default"])),
        "apply_cutoff": get(parts["radial_embedding"], "apply_cutoff", True),
        "basis": class_name(radial["bessel_fn"]) if "bessel_fn" in radial else None,
        "transform": None if transform is None else class_name(transform),
        "interactions": interactions, "readouts": readouts, "activations": activations,
    }


def state_of(model, torch):
    kinds = {torch.float64: "F64", torch.float32: "F32", torch.int64: "I64", torch.int32: "I32", torch.bool: "BOOL"}
    state = {}
    for name, tensor in model.state_dict().items():
        if tensor.dtype not in kinds:
            raise Unsupported([f"tensor {name} is {tensor.dtype}; supported: float64, float32"])
        # Copied: the model is changed later.
        state[name] = Stored(kinds[tensor.dtype], tensor.shape, tensor.detach().contiguous().numpy().tobytes())
    return state


def in_float64(model, torch):
    """The model itself, from now on in float64; its Clebsch-Gordan constants have all their digits again."""
    from e3nn import o3

    model.double()
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if "_w3j_" in name:
                degrees = [int(l) for l in name.rsplit("_w3j_", 1)[1].split("_")]
                exact = o3.wigner_3j(*degrees, dtype=torch.float64)
                if float((buffer - exact).abs().max()) > 1e-6:
                    raise Unsupported([f"{name} is not the tensor that this version of e3nn has; use the version that the "
                                       "checkpoint was made with"])
                buffer.copy_(exact)
    return model


def run_package(model, structure, species, head, r_max, torch):
    numbers, positions, cell, periodic = structure
    senders, receivers, shifts = neighbours(positions, cell, periodic, r_max)
    unit = torch.tensor(shifts, dtype=torch.float64).reshape(-1, 3)
    rows = torch.tensor(cell or [[0.0] * 3] * 3, dtype=torch.float64)
    one_hot = torch.zeros(len(numbers), len(species), dtype=torch.float64)
    for i, z in enumerate(numbers):
        one_hot[i, species.index(z)] = 1
    stress = all(periodic)
    out = model({
        "positions": torch.tensor(positions, dtype=torch.float64), "node_attrs": one_hot,
        "edge_index": torch.tensor([senders, receivers], dtype=torch.int64), "shifts": unit @ rows,
        "unit_shifts": unit, "cell": rows, "batch": torch.zeros(len(numbers), dtype=torch.int64),
        "ptr": torch.tensor([0, len(numbers)]), "head": torch.tensor([head]),
    }, compute_force=True, compute_stress=stress)
    return {"n_edges": len(senders), "energy": float(out["energy"][0]),
            "node_energies": out["node_energy"].detach().tolist(), "forces": out["forces"].detach().tolist(),
            "stress": out["stress"].detach().reshape(3, 3).tolist() if stress else None}


def compare(model, config, folder, program, tolerance, seed, torch):
    """Rows (head, structure, {quantity: error}); raises Failure where one is too large."""
    import ase.data

    radii = [float(r) for r in ase.data.covalent_radii]
    species = config["atomic_numbers"]
    structures = random_structures(species, radii, config["r_max"], seed)
    xyz = as_xyz(structures.values(), ase.data.chemical_symbols)
    rows, wrong = [], []
    for h, head in enumerate(config["heads"]):
        frames = run_fastpath(program, folder, xyz, head)
        for (name, structure), frame in zip(structures.items(), frames):
            expected = run_package(model, structure, species, h, config["r_max"], torch)
            if frame["n_edges"] != expected["n_edges"]:
                raise Failure(f"{name}: fastpath finds {frame['n_edges']} edges, the converter {expected['n_edges']}")
            errors = {key: difference(frame[key], expected[key]) for key in ("energy", "node_energies", "forces",
                                                                           "stress") if expected[key] is not None}
            # An energy is a sum: its digits are those of its parts.
            parts = sum(abs(x) for x in expected["node_energies"])
            errors["energy"] = abs(frame["energy"] - expected["energy"]) / max(parts, 1e-300)
            rows.append((head, name, len(structure[0]), errors))
            wrong += [f"head {head}, {name}: {key} differ by {error:.2g} of the largest" for key, error in errors.items()
                      if not error <= tolerance]
    if wrong:
        raise Failure("the new model does not compute what the package computes; nothing was written"
                      + "".join(f"\n  - {text}" for text in wrong))
    return rows


def find_program(given):
    if given is not None:
        found = shutil.which(given)
        if found is None:
            raise Failure(f"--fastpath {given}: there is no such program", 2)
        return found
    built = pathlib.Path(__file__).resolve().parents[1] / "build" / "release" / "bin" / "fastpath"
    found = str(built) if built.is_file() else shutil.which("fastpath")
    if found is None:
        raise Failure(f"the program fastpath is neither {built} nor on PATH; build it (./scripts/test.sh) or say where "
                      "it is with --fastpath", 3)
    return found


def convert(arguments):
    output = pathlib.Path(arguments.output)
    check_output(output)
    program = find_program(arguments.fastpath)
    hyperparameters = None
    if arguments.hyperparameters is not None:
        try:
            with open(arguments.hyperparameters, encoding="utf-8") as file:
                hyperparameters = json.load(file)
        except (OSError, ValueError) as error:
            raise Failure(f"{arguments.hyperparameters}: {error}", 2) from None
    torch, modules = import_package()
    torch.set_default_dtype(torch.float64)
    model = load(arguments.checkpoint, hyperparameters, torch, modules)
    if "interactions" not in children(model) or "readouts" not in children(model):
        raise Unsupported([f"{arguments.checkpoint} holds a {class_name(model)}; supported: {', '.join(MODELS)}"])
    state = state_of(model, torch)
    config, tensors = derive(facts_of(model, torch), state)
    with new_folder(output) as folder:
        write_folder(folder, config, tensors)
        rows = compare(in_float64(model, torch), config, folder, program, arguments.tolerance, arguments.seed, torch)
        (folder / "README.md").write_text(readme(config, rows, arguments.checkpoint, output.name), encoding="utf-8")
    return config, tensors, rows


def readme(config, rows, checkpoint, name):
    """Where the model comes from, for who finds it in a hub."""
    with open(checkpoint, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else hashlib.sha256(
            file.read()).hexdigest()
    versions = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in ("mace-torch", "e3nn", "torch"))
    worst = {key: max((row[3][key] for row in rows if key in row[3]), default=0.0) for key in ("energy", "forces", "stress")}
    return f"""# {name}

Converted from the MACE checkpoint `{os.path.basename(checkpoint)}` by scripts/convert_mace.py.

- SHA-256 of the checkpoint: {digest}
- elements (atomic numbers): {", ".join(map(str, config["atomic_numbers"]))}
- heads: {", ".join(config["heads"])}
- compared with {versions}, in float64, on {len(rows)} random structures;
  largest difference in units of the largest value: energy {worst["energy"]:.1e}, forces {worst["forces"]:.1e}, stress {worst["stress"]:.1e}

What it was trained on, and the terms under which it may be used, are those of the checkpoint.
"""


def report(config, tensors, rows, output):
    print(f"{output}: {config['num_interactions']} layers of {config['hidden_irreps']}, {len(config['atomic_numbers'])} "
          f"elements, {len(config['heads'])} heads, {sum(t.numel for n, t in tensors.items() if t.is_floating)} numbers in "
          f"{config['dtype']}")
    print(f"\n{'head':<16} {'structure':<20} {'atoms':>5}  " + "  ".join(
        f"{key:>13}" for key in ("energy", "node_energies", "forces", "stress")))
    for head, name, atoms, errors in rows:
        cells = [f"{errors[key]:13.1e}" if key in errors else " " * 12 + "-"
                 for key in ("energy", "node_energies", "forces", "stress")]
        print(f"{head:<16} {name:<20} {atoms:>5}  " + "  ".join(cells))
    print("\nlargest difference from the package, in units of the largest value; energy: of the sum of its parts")


def main(words=None):
    parser = argparse.ArgumentParser(prog="convert_mace.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="the file to convert")
    parser.add_argument("-o", "--output", metavar="DIR", required=True, help="the model folder to make")
    parser.add_argument("--hyperparameters", metavar="FILE", help="for weights alone: what the model is made with (JSON)")
    parser.add_argument("--fastpath", metavar="PROGRAM",
                        help="the program to compare with; default: build/release/bin/fastpath, else the one on PATH")
    parser.add_argument("--tolerance", metavar="X", type=float, default=1e-10,
                        help="largest difference in units of the largest value, default %(default)g")
    parser.add_argument("--seed", metavar="N", type=int, default=1, help="of the random structures, default 1")
    arguments = parser.parse_args(words)

    def stop(number, _frame):
        raise Failure(f"stopped by {signal.Signals(number).name}; nothing was written", 128 + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    noise = io.StringIO()
    try:
        with contextlib.redirect_stdout(noise):  # the package prints
            result = convert(arguments)
    except Failure as failure:
        print(f"convert_mace.py: error: {failure}", file=sys.stderr)
        return failure.status
    except OSError as error:
        print(f"convert_mace.py: error: {error.filename or arguments.output}: {error.strerror}", file=sys.stderr)
        return 1
    report(*result, arguments.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
