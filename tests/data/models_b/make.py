#!/usr/bin/env python3
"""Makes the models and results of this folder with the packages that define them; README.md says which versions.

    make.py FOLDER

writes a folder per model, the structures, and expected.json. Everything random comes from fixed seeds. Other scripts
may import build(), export() and evaluate() to compare further models.
"""

import json
import os
import sys

import ase.data
import ase.io
import numpy as np
import torch
from e3nn import o3
from mace import data, modules, tools
from safetensors.torch import save_file

torch.set_default_dtype(torch.float64)

HEADER = {"format": "fastpath-model", "format_version": 1, "architecture": "mace", "dtype": "float64"}
DISTANCES = {"none": "None", "agnesi": "Agnesi", "soft": "Soft"}
BLOCK = "RealAgnostic{}InteractionBlock"

# What the three have in common is only that nothing is as it usually is: no two sizes are equal, the constants that a
# file may change are changed, and energies of heads, species and scale differ.
MODELS = {
    "density": {
        "config": {
            "atomic_numbers": [1, 6, 8], "r_max": 3.7, "num_bessel": 5, "polynomial_cutoff_p": 6,
            "distance_transform": "agnesi", "pair_repulsion": True, "radial_mlp": [7, 11], "l_max": 1,
            "hidden_irreps": "5x0e+5x1o", "num_interactions": 3, "correlation": 3,
            "interaction_first": BLOCK.format("Density"), "interaction": BLOCK.format("DensityResidual"),
            "mlp_irreps": "3x0e", "avg_num_neighbors": 9.5, "heads": ["low", "high"],
        },
        "constants": {
            "radial_embedding.distance_transform.a": 1.31, "radial_embedding.distance_transform.q": 0.77,
            "radial_embedding.distance_transform.p": 4.2, "pair_repulsion_fn.a_exp": 0.27,
            "pair_repulsion_fn.a_prefactor": 0.51,
        },
        "scale": [0.8, 1.7], "shift": [-0.3, 0.45],
        "atomic_energies": [[-13.6, -1029.3, -2041.8], [-0.7, 2.4, 1.1]],
        "seed": 101,
    },
    "soft": {
        "config": {
            "atomic_numbers": [6, 1, 8], "r_max": 3.2, "num_bessel": 6, "polynomial_cutoff_p": 5,
            "distance_transform": "soft", "apply_cutoff": False, "pair_repulsion": True, "radial_mlp": [9],
            "l_max": 2, "hidden_irreps": "3x0e+3x1o+3x2e", "num_interactions": 3, "correlation": [2, 2, 3],
            "interaction_first": BLOCK.format("DensityResidual"), "interaction": BLOCK.format("Residual"),
            "mlp_irreps": "4x0e", "avg_num_neighbors": 7.25, "heads": ["a", "b"],
        },
        "constants": {
            "radial_embedding.distance_transform.alpha": 2.6, "pair_repulsion_fn.p": 4,
            "pair_repulsion_fn.c": [0.2, 0.45, 0.3, 0.05],
        },
        "scale": [1.2, 0.6], "shift": [0.1, -0.2],
        "atomic_energies": [[1.5, -2.5, 0.25], [-3.0, 4.0, -1.25]],
        "seed": 202,
    },
    "correlation4": {
        "config": {
            "atomic_numbers": [8, 6, 1], "r_max": 3.5, "num_bessel": 4, "polynomial_cutoff_p": 7,
            "distance_transform": "agnesi", "pair_repulsion": True, "radial_mlp": [6, 6], "l_max": 1,
            "hidden_irreps": "6x0e", "num_interactions": 3, "correlation": [4, 1, 3],
            "interaction_first": BLOCK.format(""), "interaction": BLOCK.format("Density"),
            "mlp_irreps": "5x0e", "avg_num_neighbors": 6.0, "heads": ["first", "second"],
        },
        "constants": {"radial_embedding.distance_transform.a": 0.9},
        "scale": [1.1, 0.9], "shift": [0.0, 0.05],
        "atomic_energies": [[-0.5, 0.5, 1.5], [2.5, -1.5, 0.75]],
        "seed": 303,
    },
}  # fmt: skip


def structures():
    """A molecule with bonds shorter than the sums of covalent radii, and a triclinic cell shorter than the cutoffs."""
    molecule = ase.Atoms(
        "COHHOHC",
        positions=[
            [0.03, -0.02, 0.05], [1.21, 0.17, -0.24], [-0.58, 0.83, 0.31], [-0.47, -0.94, 0.12],
            [2.41, -1.52, 0.91], [2.05, -0.81, 0.42], [0.71, 1.93, 1.12],
        ],
    )  # fmt: skip
    crystal = ase.Atoms(
        "CHOH",
        positions=[[0.1, 0.2, 0.3], [1.12, 0.35, 0.61], [1.71, 1.9, 0.44], [0.62, 1.43, 1.95]],
        cell=[[2.9, 0.0, 0.0], [0.4, 3.1, 0.0], [-0.3, 0.5, 3.3]],
        pbc=True,
    )
    return {"molecule": molecule, "crystal": crystal}


def build(config, constants, scale, shift, atomic_energies, seed, reduced_cg=False):
    """A model of the package with seeded weights."""
    blocks = modules.interaction_classes
    model = modules.ScaleShiftMACE(
        r_max=config["r_max"],
        num_bessel=config["num_bessel"],
        num_polynomial_cutoff=config["polynomial_cutoff_p"],
        max_ell=config["l_max"],
        interaction_cls_first=blocks[config["interaction_first"]],
        interaction_cls=blocks[config["interaction"]],
        num_interactions=config["num_interactions"],
        num_elements=len(config["atomic_numbers"]),
        hidden_irreps=o3.Irreps(config["hidden_irreps"]),
        MLP_irreps=o3.Irreps(config.get("mlp_irreps", "16x0e")),
        atomic_energies=np.array(atomic_energies),
        avg_num_neighbors=config["avg_num_neighbors"],
        atomic_numbers=config["atomic_numbers"],
        correlation=config["correlation"],
        gate=torch.nn.functional.silu,
        pair_repulsion=config.get("pair_repulsion", False),
        apply_cutoff=config.get("apply_cutoff", True),
        use_reduced_cg=reduced_cg,
        distance_transform=DISTANCES[config.get("distance_transform", "none")],
        radial_MLP=config.get("radial_mlp"),
        heads=config.get("heads"),
        atomic_inter_scale=scale,
        atomic_inter_shift=shift,
    )
    random = np.random.default_rng(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            values = random.standard_normal(tuple(parameter.shape))
            # The package draws these from a normal distribution of this width; all others have unit variance.
            width = 1 / parameter.shape[1] if "symmetric_contractions" in name else 1.0
            parameter.copy_(torch.tensor(width * values))
        # As if they had been trained.
        frequencies = model.radial_embedding.bessel_fn.bessel_weights
        frequencies *= 1 + 0.02 * torch.tensor(random.standard_normal(tuple(frequencies.shape)))
        own = model.state_dict()
        for name, value in constants.items():
            own[name].copy_(torch.tensor(value))
    return model


def config_text(config, dtype):
    """A list of correlations is one for all layers where the package has one."""
    return json.dumps({**HEADER, "dtype": dtype, **config}, indent=1) + "\n"


def needed(name, tensor):
    """Not what the package stores beside: docs/model-format.md lists it. Kept by export(everything=True)."""
    ignored = name.endswith(("_zeroed", ".output_mask")) or "_w3j_" in name
    return not ignored and tensor.numel() > 0


def export(model, config, folder, dtype="float64", everything=False):
    """Writes a model folder. The tensors are those of the package's state dict, under their names."""
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        file.write(config_text(config, dtype))
    state = {name: t.contiguous().clone() for name, t in model.state_dict().items() if everything or needed(name, t)}
    path = os.path.join(folder, "model.safetensors")
    save_file(state, path)
    os.chmod(path, 0o644)


def evaluate(model, config, atoms, head, dtype=torch.float64):
    """Energy, node energies, forces and (periodic structures) stress as plain lists."""
    heads = config.get("heads", ["default"])
    table = tools.AtomicNumberTable(config["atomic_numbers"])
    configuration = data.config_from_atoms(atoms, head_name=head)
    configuration.head = head
    graph = data.AtomicData.from_config(configuration, z_table=table, cutoff=config["r_max"], heads=heads)
    batch = next(iter(tools.torch_geometric.dataloader.DataLoader([graph], batch_size=1))).to_dict()
    batch = {key: v.to(dtype) if torch.is_tensor(v) and v.is_floating_point() else v for key, v in batch.items()}
    periodic = bool(atoms.pbc.all())
    out = model(batch, compute_stress=periodic)
    result = {
        "n_edges": int(batch["edge_index"].shape[1]),
        "energy": float(out["energy"][0]),
        "node_energies": out["node_energy"].detach().tolist(),
        "forces": out["forces"].detach().tolist(),
    }
    if periodic:
        result["stress"] = out["stress"][0].detach().tolist()
    return result


def main():
    folder = sys.argv[1]
    expected = {}
    for name, atoms in structures().items():
        ase.io.write(os.path.join(folder, name + ".xyz"), atoms, format="extxyz")
    for name, spec in MODELS.items():
        spec = dict(spec)
        config = spec["config"]
        model = build(**spec)
        export(model, config, os.path.join(folder, name))
        expected[name] = {
            structure: {head: evaluate(model, config, atoms, head) for head in config["heads"]}
            for structure, atoms in structures().items()
        }
    with open(os.path.join(folder, "expected.json"), "w", encoding="utf-8") as file:
        json.dump(expected, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
