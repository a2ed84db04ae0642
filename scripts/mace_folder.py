"""From facts and tensors of a MACE checkpoint to a model folder (docs/model-format.md). Needs nothing but Python."""

import contextlib
import json
import math
import os
import shutil
import struct

BLOCKS = ("RealAgnosticInteractionBlock", "RealAgnosticResidualInteractionBlock", "RealAgnosticDensityInteractionBlock",
          "RealAgnosticDensityResidualInteractionBlock")
MODELS = ("MACE", "ScaleShiftMACE")
TRANSFORMS = {None: "none", "AgnesiTransform": "agnesi", "SoftTransform": "soft"}
CHILDREN = ("node_embedding", "radial_embedding", "spherical_harmonics", "pair_repulsion_fn", "atomic_energies_fn",
            "interactions", "products", "readouts", "scale_shift")
SILU_CONSTANT = 1.6791767923989418
# Settings of a model that change what it computes, and the values for which they do not.
SETTINGS = {"use_so3": (False,), "use_agnostic_product": (False,), "use_last_readout_only": (False,),
            "use_edge_irreps_first": (False,), "embedding_specs": (None,)}
# What versions of the package before 0.3.10 stored and never used.
LEFTOVERS = ("pair_repulsion_fn.r_max", "pair_repulsion_fn.cutoff.r_max", "pair_repulsion_fn.cutoff.p")
CONTRACTION = "products.{}.symmetric_contractions.contractions.{}."


class Failure(Exception):
    """Ends the script. `status` is its exit status."""

    def __init__(self, text, status=1):
        super().__init__(text)
        self.status = status


class Unsupported(Failure):
    """What fastpath cannot evaluate; `problems` has one text each."""

    def __init__(self, problems):
        super().__init__("not supported:" + "".join(f"\n  - {problem}" for problem in problems))
        self.problems = problems


class Stored:
    """A tensor as safetensors stores it: dtype ("F64", "F32", "I64", "I32", "BOOL"), shape, bytes in C order."""

    FORMATS = {"F64": "d", "F32": "f", "I64": "q", "I32": "i", "BOOL": "?"}

    def __init__(self, dtype, shape, data):
        self.dtype, self.shape, self.data = dtype, tuple(shape), bytes(data)
        assert len(self.data) == self.numel * struct.calcsize("=" + self.FORMATS[dtype])

    @classmethod
    def of(cls, dtype, shape, values):
        return cls(dtype, shape, struct.pack(f"<{math.prod(shape)}{cls.FORMATS[dtype]}", *values))

    @property
    def numel(self):
        return math.prod(self.shape)

    @property
    def is_floating(self):
        return self.dtype in ("F64", "F32")

    def values(self):
        return struct.unpack(f"<{self.numel}{self.FORMATS[self.dtype]}", self.data)

    def to(self, dtype):
        return self if dtype == self.dtype else Stored.of(dtype, self.shape, self.values())


def is_needless(name, tensor):
    """What MACE stores beside what an evaluation needs (docs/model-format.md)."""
    empty = tensor.numel == 0 and name.endswith((".bias", "conv_tp.weight"))
    return empty or name.endswith(("_zeroed", ".output_mask")) or "_w3j_" in name or name in LEFTOVERS


def full_basis_size(l_max, degree, nu):
    """Columns of the full (not reduced) coupling matrix of order nu, as MACE makes it."""
    ways = {(l, (-1) ** l): 1 for l in range(l_max + 1)}
    for _ in range(nu - 1):
        grown = {}
        for (left, parity), count in ways.items():
            for l in range(l_max + 1):
                for l_out in range(abs(left - l), left + l + 1):
                    key = (l_out, parity * (-1) ** l)
                    if nu == 4 and (l_out > 11 or key[1] != (-1) ** l_out):
                        continue
                    grown[key] = grown.get(key, 0) + count
        ways = grown
    return ways.get((degree, (-1) ** degree), 0)


def natural(channels, l_max):
    return "+".join(f"{channels}x{l}{'eo'[l % 2]}" for l in range(l_max + 1))


def plain_irreps(irreps):
    """The text of irreps; a scripted model has them as tuples (multiplicity, (degree, parity))."""
    if isinstance(irreps, str):
        return irreps.replace(" ", "")
    return "+".join(f"{multiplicity}x{l}{'e' if parity > 0 else 'o'}" for multiplicity, (l, parity) in irreps)


def derive(facts, state):
    """config.json (a dict) and the tensors of a model folder.

    facts: what a checkpoint knows beside its tensors:
      "model": class name; "children": {name of a part: class name}; "settings": {attribute: value};
      "heads": names, or None; "apply_cutoff": bool; "basis", "transform": class names of the radial part or None;
      "interactions": per layer {"block", "radial_net": class names; "avg_num_neighbors": number;
                      "convolution": {"irreps_in", "irreps_edge", "irreps_out", "instructions"} or None if unknown};
      "readouts": class names; "activations": {place: ("silu" or what it is, constant)}.
    state: {name: Stored}.
    Throws Unsupported with everything that fastpath cannot evaluate, or that is missing.
    """
    problems = []
    state = {name: tensor for name, tensor in state.items() if not is_needless(name, tensor)}

    def expect(what, found, accepted):
        if found not in accepted:
            problems.append(f"{what} is {found}; supported: {', '.join(str(x) for x in accepted)}")

    expect("the model's class", facts["model"], MODELS)
    for name, kind in facts["children"].items():
        if name not in CHILDREN:
            problems.append(f"the model has a part '{name}' ({kind}); supported parts: {', '.join(CHILDREN)}")
    for name, accepted in SETTINGS.items():
        if name in facts["settings"]:
            expect(name, facts["settings"][name], accepted)
    expect("the radial basis", facts["basis"], ("BesselBasis",))
    expect("the distance transform", facts["transform"], tuple(TRANSFORMS))
    layers = facts["interactions"]
    for t, layer in enumerate(layers):
        expect(f"the block of interactions.{t}", layer["block"], BLOCKS)
        expect(f"the net of interactions.{t}.conv_tp_weights", layer["radial_net"], ("FullyConnectedNet",))
    for t, layer in enumerate(layers[2:], 2):
        if layer["block"] != layers[1]["block"]:
            problems.append(f"interactions.{t} is {layer['block']} and interactions.1 is {layers[1]['block']}; "
                            "supported: one block for all layers but the first")
    last = len(layers) - 1
    if len(facts["readouts"]) != len(layers):
        problems.append(f"there are {len(facts['readouts'])} readouts for {len(layers)} layers; supported: one per layer")
    for t, kind in enumerate(facts["readouts"]):
        expect(f"readouts.{t}", kind, ("NonLinearReadoutBlock" if t == last and t > 0 else "LinearReadoutBlock",))
    constants = set()
    for place, (kind, constant) in facts["activations"].items():
        expect(f"the activation of {place}", kind, ("silu",))
        constants.update([constant] if kind == "silu" else [])
    if len(constants) > 1:
        problems.append(f"activations have the constants {', '.join(map(repr, sorted(constants)))}; "
                        "supported: one for all")
    if problems:  # the tensors of another architecture would only repeat it
        raise Unsupported(problems)

    def need(name, rank=None):
        tensor = state.get(name)
        if tensor is None or (rank is not None and len(tensor.shape) != rank):
            found = "missing" if tensor is None else f"of shape {list(tensor.shape)}"
            raise Unsupported([f"tensor {name} is {found}" + (f"; expected {rank} axes" if rank is not None else "")])
        return tensor

    numbers = list(need("atomic_numbers", 1).values())
    n_species, n_layers = len(numbers), len(layers)
    heads = [str(head) for head in facts["heads"] or ["default"]]
    bessel = need("radial_embedding.bessel_fn.bessel_weights", 1)
    first = need(CONTRACTION.format(0, 0) + "weights_max", 3)
    channels = first.shape[2]
    l_max = math.isqrt(need(CONTRACTION.format(0, 0) + "U_matrix_1", 2).shape[0]) - 1

    correlation, degrees, reduced = [], [], False
    for t in range(n_layers):
        count = 0
        while CONTRACTION.format(t, count) + "weights_max" in state:
            count += 1
        degrees.append(count - 1)
        orders = {sum(1 for nu in range(1, 10) if f"{CONTRACTION.format(t, l)}U_matrix_{nu}" in state)
                  for l in range(count)}
        correlation.append(max(orders, default=0))
        if count == 0 or len(orders) != 1 or not 1 <= correlation[-1] <= 4:
            problems.append(f"products.{t} has contractions of orders {sorted(orders) or 'none'}; "
                            "supported: one order for a layer, 1 to 4")
            continue
        for l in range(count):
            for nu in range(1, correlation[-1] + 1):
                columns, full = need(f"{CONTRACTION.format(t, l)}U_matrix_{nu}").shape[-1], full_basis_size(l_max, l, nu)
                reduced = reduced or columns < full
                if columns > full:
                    problems.append(f"{CONTRACTION.format(t, l)}U_matrix_{nu} has {columns} columns; at most {full} "
                                    f"exist for messages {natural(channels, l_max)}")
            weights = need(CONTRACTION.format(t, l) + "weights_max", 3)
            if weights.shape[0] != n_species or weights.shape[2] != channels:
                problems.append(f"{CONTRACTION.format(t, l)}weights_max has the shape {list(weights.shape)}; expected "
                                f"{n_species} species and {channels} channels")
    hidden = natural(channels, degrees[0])
    keeps = n_layers > 1 and degrees[-1] > 0
    for t, degree in enumerate(degrees):
        wanted = degrees[0] if t < last or keeps else 0
        if degree != wanted and not (n_layers == 1 and degree == 0):
            problems.append(f"layer {t} gives degrees up to {degree}; expected {wanted}")

    density = {t for t in range(n_layers) if "Density" in layers[t]["block"]}
    nets = []
    for t in range(n_layers):
        prefix = f"interactions.{t}.conv_tp_weights.layer"
        count = sum(1 for i in range(100) if f"{prefix}{i}.weight" in state)
        widths = [need(f"{prefix}{i}.weight", 2).shape for i in range(count)]
        nets.append([shape[1] for shape in widths[:-1]])
        inputs = [shape[0] for shape in widths]
        if not widths or inputs != [bessel.numel, *nets[-1]]:
            problems.append(f"the radial net of layer {t} has layers {[list(w) for w in widths]}; expected the first to "
                            f"take the {bessel.numel} basis functions and each other what the one before gives")
        if nets[-1] != nets[0]:
            problems.append(f"radial nets have hidden widths {nets[0]} and {nets[-1]}; supported: the same in all layers")
        blocks = 1 if t == 0 else degrees[t - 1] + 1
        up = need(f"interactions.{t}.linear_up.weight", 1)
        if up.numel != blocks * channels * channels:
            problems.append(f"interactions.{t}.linear_up.weight has {up.numel} values; supported: edge irreps equal to "
                            f"those of the nodes, {blocks} x {channels} x {channels} values")
        convolution = layers[t]["convolution"]
        if convolution is not None:
            for key, wanted in (("irreps_in", natural(channels, 0 if t == 0 else degrees[t - 1])),
                                ("irreps_edge", natural(1, l_max))):
                found = plain_irreps(convolution[key])
                if found != wanted:
                    problems.append(f"interactions.{t}.conv_tp: {key} is {found}; supported: {wanted}")

    dtypes = {tensor.dtype for name, tensor in state.items()
              if tensor.is_floating and name != "atomic_energies_fn.atomic_energies"}
    dtype = "F64" if "F64" in dtypes else "F32"
    tensors = {name: tensor.to(dtype) if tensor.is_floating and not (
        name == "atomic_energies_fn.atomic_energies" and tensor.dtype == "F64") else tensor
        for name, tensor in state.items()}
    for name in ("radial_embedding.cutoff_fn.p", "pair_repulsion_fn.p"):
        if name in tensors:
            powers = tensors[name].values()  # floating numbers in versions before 0.3.10
            if any(p != int(p) for p in powers):
                problems.append(f"{name} is {powers[0]}; supported: whole numbers")
            tensors[name] = Stored.of("I32", tensors[name].shape, [int(p) for p in powers])
    if facts["model"] == "MACE":
        tensors["scale_shift.scale"] = Stored.of(dtype, (), [1.0])
        tensors["scale_shift.shift"] = Stored.of(dtype, (), [0.0])

    known = ["atomic_numbers", "r_max", "num_interactions", "node_embedding.linear.weight",
             "radial_embedding.bessel_fn.bessel_weights", "radial_embedding.bessel_fn.prefactor",
             "radial_embedding.bessel_fn.r_max", "radial_embedding.cutoff_fn.r_max", "radial_embedding.cutoff_fn.p",
             "atomic_energies_fn.atomic_energies", "scale_shift.scale", "scale_shift.shift"]
    if facts["transform"] is not None:
        names = ("a", "q", "p") if facts["transform"] == "AgnesiTransform" else ("alpha",)
        known += [f"radial_embedding.distance_transform.{name}" for name in (*names, "covalent_radii")]
    repels = any(name.startswith("pair_repulsion_fn.") for name in tensors)
    if repels:
        known += [f"pair_repulsion_fn.{name}" for name in ("c", "p", "covalent_radii", "a_exp", "a_prefactor")]
    for t in range(n_layers):
        known += [f"interactions.{t}.{name}.weight" for name in ("linear_up", "linear", "skip_tp")]
        known += [f"interactions.{t}.conv_tp_weights.layer{i}.weight" for i in range(len(nets[t]) + 1)]
        known += [f"interactions.{t}.density_fn.layer0.weight"] if t in density else []
        known.append(f"products.{t}.linear.weight")
        for l in range(degrees[t] + 1):
            prefix = CONTRACTION.format(t, l)
            known += [f"{prefix}U_matrix_{nu}" for nu in range(1, correlation[t] + 1)]
            known += [prefix + "weights_max"] + [f"{prefix}weights.{i}" for i in range(correlation[t] - 1)]
        known += [f"readouts.{t}.{name}.weight"
                  for name in (("linear_1", "linear_2") if t == last and t > 0 else ("linear",))]
    missing, unknown = sorted(set(known) - set(tensors)), sorted(set(tensors) - set(known))
    if missing:
        problems.append("tensors are missing: " + ", ".join(missing))
    if unknown:
        problems.append("tensors have no place in a model folder: " + ", ".join(unknown))
    if problems:
        raise Unsupported(problems)

    mlp = tensors[f"readouts.{last}.linear_2.weight"].numel // len(heads) ** 2 if n_layers > 1 else 16
    neighbours = [float(layer["avg_num_neighbors"]) for layer in layers]
    config = {
        "format": "fastpath-model", "format_version": 1, "architecture": "mace",
        "dtype": {"F64": "float64", "F32": "float32"}[dtype], "atomic_numbers": numbers,
        "r_max": float(need("r_max").values()[0]), "radial_type": "bessel", "num_bessel": bessel.numel,
        "polynomial_cutoff_p": tensors["radial_embedding.cutoff_fn.p"].values()[0],
        "distance_transform": TRANSFORMS[facts["transform"]], "apply_cutoff": bool(facts["apply_cutoff"]),
        "pair_repulsion": repels, "radial_mlp": nets[0], "l_max": l_max, "hidden_irreps": hidden,
        "num_interactions": n_layers, "correlation": correlation, "interaction_first": layers[0]["block"],
        "interaction": layers[1 if n_layers > 1 else 0]["block"], "mlp_irreps": f"{mlp}x0e", "gate": "silu",
        "activation_constant": constants.pop() if constants else SILU_CONSTANT, "avg_num_neighbors": neighbours,
        "heads": heads, "reduced_cg": reduced, "keep_last_layer_irreps": keeps,
    }
    if all(layer["convolution"] is not None for layer in layers):
        config["convolutions"] = [
            {**{key: plain_irreps(layer["convolution"][key]) for key in ("irreps_in", "irreps_edge", "irreps_out")},
             "instructions": [list(path) for path in layer["convolution"]["instructions"]]} for layer in layers]
    return config, tensors


def write_folder(folder, config, tensors):
    """The two files of a model."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    header, offset = {"__metadata__": {"format": "fastpath-model"}}, 0
    # The largest elements first: every tensor is aligned then.
    names = sorted(tensors, key=lambda name: ("F64 I64 F32 I32 BOOL".split().index(tensors[name].dtype), name))
    for name in names:
        tensor = tensors[name]
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape),
                        "data_offsets": [offset, offset + len(tensor.data)]}
        offset += len(tensor.data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in names:
            file.write(tensors[name].data)
        file.flush()
        os.fsync(file.fileno())


def check_output(output):
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        raise Failure(f"{output}: exists and is not an empty folder", 2)
    if not output.name:
        raise Failure(f"{output}: is not a name for a folder", 2)


@contextlib.contextmanager
def new_folder(output):
    """A folder to fill beside `output`, which it becomes if nothing goes wrong inside; else nothing is left."""
    made = []
    for parent in [output.parent, *output.parent.parents]:
        if parent.exists():
            break
        made.append(parent)
    temporary = output.parent / f".{output.name}.partial-{os.getpid()}"
    try:
        temporary.mkdir(parents=True)
        yield temporary
        if output.exists():
            output.rmdir()  # empty: check_output()
        os.rename(temporary, output)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        for parent in made:
            with contextlib.suppress(OSError):
                parent.rmdir()
        raise
