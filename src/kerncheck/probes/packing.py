"""Does one packed example reach another? Exact tests on a tiny model, for each way to tell examples apart.

Gradient test: the gradient of one example's outputs with respect to another example's embeddings must be exactly
zero. Perturbation test: when only one example's embeddings change, the outputs of all others must not change in a
single bit. Both are exact for any model that computes each token's rows alone; routing of experts is the exception,
which the judge knows. Boundaries are built anew for each call: fla remembers chunk indices by object identity.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kerncheck.compat.interpose import ATTENTION, Around, Bound, interposed
from kerncheck.probes import models, scene
from kerncheck.probes.places import Follower, tensors_in
from kerncheck.probes.scene import finite

LENGTHS = (2, 65, 3)
"""Tokens of each example: shorter than the convolution's width (4), one more than a chunk (64), shorter again."""
LARGE = 1e4
"""Factor of one perturbation. Finite, since masked attention turns 0 * NaN into NaN without any leak."""
FEW = {
    "linear_num_value_heads": 2,
    "linear_num_key_heads": 1,
    "linear_key_head_dim": 16,  # the smallest side of a Triton dot
    "linear_value_head_dim": 16,
}
"""Largest values here: the interpreter's time goes with the number of blocks, and leaks do not."""
TINY_WIDTH = 64
BOUNDARIES = ("seq_idx", "cu_seqlens", "cu_seq_lens_q")
ROWS = {"both_mrope3": 3, "both_mrope4": 4}
"""Rows of position_ids: time, height and width, or these after the text's own."""
ONE_ROW = "the positions of this model have one row: it has no M-RoPE"


@dataclass
class State:
    """The model, its inputs and the places of the examples in the pack."""

    scene: scene.Scene
    spans: list[tuple[int, int]] = field(default_factory=list)
    inputs: Any = None
    others: Any = None
    weights: Any = None
    follower: Any = None

    @property
    def tokens(self) -> int:
        """The length of the pack."""
        return self.spans[-1][1]


@dataclass
class Call:
    """One call of a seam: what told it the examples apart, and how far one example reached within this call."""

    layer: int
    seam: str
    implementation: str
    bound: str
    takes: list[str]
    received: dict[str, list[int] | None]
    reach: list[int] | None = None
    largest: float | None = None


def setup(options: dict[str, Any]) -> State:
    """Build the model with weak gates and large matrices, so that no leak decays below what can be seen."""
    state = State(scene.prepare({**options, "request": small(options["request"])}))
    if state.scene.missing:
        return state
    model = state.scene.built.model
    width = model.get_input_embeddings().weight.shape[-1]
    models.weaken_gates(model)
    models.scale_matrices(model, 10.0 * (TINY_WIDTH / width) ** 0.5)  # the gain of a matrix grows with its width
    scene.without_dropout(model.train())
    for parameter in model.parameters():
        parameter.requires_grad_(requires_grad=False)
    ends = [sum(LENGTHS[: index + 1]) for index in range(len(LENGTHS))]
    state.spans = list(zip([0, *ends], ends, strict=False))
    state.follower = Follower(model, len(state.scene.built.layer_types))
    draw(state, int(options.get("seed", 0)))
    return state


def small(request: dict[str, Any]) -> dict[str, Any]:
    """Keep at most two layers of the first kind and one of each other: boundaries must reach a second layer too.

    A request without sizes of its own is left to the builder.
    """
    own = dict(request.get("shrink") or {})
    kinds = own.get("layer_types")
    if not kinds:
        return request
    first = [kind for kind in kinds if kind == kinds[0]][:2]
    own["layer_types"] = [*first, *dict.fromkeys(kind for kind in kinds if kind != kinds[0])]
    own["num_hidden_layers"] = len(own["layer_types"])
    own.update({name: min(own[name], most) for name, most in FEW.items() if name in own})
    return {**request, "shrink": own}


def draw(state: State, seed: int) -> None:
    """Draw the embeddings and, for each example, fresh ones."""
    import torch

    model = state.scene.built.model
    table = model.get_input_embeddings().weight
    generator = torch.Generator().manual_seed(seed)
    shape = (1, state.tokens, table.shape[-1])
    make = {"device": table.device, "dtype": table.dtype}
    state.inputs = torch.randn(shape, generator=generator).to(**make)
    state.others = torch.randn(shape, generator=generator).to(**make)


def batch(state: State, convention: str) -> dict[str, Any]:
    """Return what a collator sends beside the tokens, made anew (never shared between calls)."""
    import torch

    place = state.inputs.device
    if convention == "nothing":
        return {}
    positions = torch.cat([torch.arange(end - start) for start, end in state.spans])[None]
    sent: dict[str, Any] = {"position_ids": positions.to(place)}
    if convention in ROWS:
        sent["position_ids"] = sent["position_ids"].expand(ROWS[convention], 1, -1)
    if convention == "both_mask":
        sent["attention_mask"] = torch.ones_like(sent["position_ids"])
    if convention == "cu_seq_lens" or convention.startswith("both"):
        longest = max(end - start for start, end in state.spans)
        for side in ("q", "k"):
            ends = torch.tensor([0, *(end for _, end in state.spans)], dtype=torch.int32)
            sent.update({f"cu_seq_lens_{side}": ends.to(place), f"max_length_{side}": longest})
    if convention == "seq_idx" or convention.startswith("both"):
        runs = [torch.full((end - start,), index) for index, (start, end) in enumerate(state.spans)]
        sent["seq_idx"] = torch.cat(runs)[None].to(dtype=torch.int32, device=place)
    return sent


def forward(state: State, inputs: Any, convention: str, *, use_cache: bool) -> Any:
    """Return the outputs (1, T, D) for these embeddings (1, T, W)."""
    model = state.scene.built.model
    return models.outputs(model(inputs_embeds=inputs, use_cache=use_cache, **batch(state, convention)))


def run(case: dict[str, Any], state: State) -> dict[str, Any]:
    """Observe one convention: its gradients (``gradients``), changes, and what each seam received."""
    if state.scene.missing:
        return {"missing": state.scene.missing}
    if case["convention"] in ROWS and not has_mrope(state.scene.built.model):
        return {"missing": ONE_ROW, "applies": False, "about": about(state)}
    cell = {"kind": "cell", "convention": case["convention"], "use_cache": case["use_cache"]}
    try:
        seen = observe(case, state)
    except Exception as error:
        told = scene.failure(error)
        return {"cell": {**cell, "refused": f"{told['exception']}: {told['message']}"}, "about": about(state)}
    return {"cell": {**cell, **seen}, "about": about(state)}


def has_mrope(model: Any) -> bool:
    """Tell whether positions have several rows here: the rotary embedding then says how it shares its width out."""
    return any(hasattr(module, "mrope_section") for module in model.modules())


def about(state: State) -> dict[str, Any]:
    """Return what was looked at: the pack, the model and what stood in for what."""
    built, device = state.scene.built, state.scene.device
    described = {"device": device.NAME, "name": device.describe()["name"]}
    return {
        **described,
        "lengths": [end - start for start, end in state.spans],
        "layer_types": list(built.layer_types),
        "attention": str(getattr(built.config, "_attn_implementation", "") or ""),
        "experts": scene.routes_tokens(built.config),
        "standins": list(state.scene.standins),
    }


def observe(case: dict[str, Any], state: State) -> dict[str, Any]:
    """Run the tests of one case."""
    import torch

    calls: list[Call] = []
    inputs = state.inputs.clone().requires_grad_(case["gradients"])
    alone = ("function", ATTENTION) if case["gradients"] else (ATTENTION,)  # a cache changes nothing in other seams
    with interposed(state.scene.built.model, recorder(state, calls, alone)), state.follower.hooked():
        outputs = forward(state, inputs, case["convention"], use_cache=case["use_cache"])
    gradients = gradient_norms(state, outputs, inputs) if case["gradients"] else []
    base = outputs.detach()
    with torch.no_grad():
        changes = [changed(state, base, case, example) for example in case["examples"]]
    return {
        "gradients": gradients,
        "changes": changes,
        "seams": [vars(call) for call in calls],
        "finite": bool(torch.isfinite(base).all()),
    }


def gradient_norms(state: State, outputs: Any, inputs: Any) -> list[list[float | None]]:
    """Return the norm of d(weighted sum of example i's outputs) / d(embeddings of example j), for each i and j."""
    import torch

    if state.weights is None:
        generator = torch.Generator().manual_seed(2)
        state.weights = torch.randn(outputs.shape, generator=generator).to(outputs)
    weighted, rows = outputs * state.weights, []
    for start, end in state.spans:
        (gradient,) = torch.autograd.grad(weighted[:, start:end].sum(), inputs, retain_graph=True)
        rows.append([finite(gradient[:, first:last].float().norm()) for first, last in state.spans])
    return rows


def changed(state: State, base: Any, case: dict[str, Any], example: int) -> dict[str, Any]:
    """Change one example's embeddings; return for each example how many tokens changed, and by how much at most."""
    scale = LARGE if example == 0 else 1.0
    inputs = replaced(state, state.inputs, example, state.others * scale, dim=1)
    outputs = forward(state, inputs, case["convention"], use_cache=case["use_cache"])
    difference = (outputs - base).abs().amax(-1)[0]
    differs = (outputs != base).any(-1)[0]
    return {
        "example": example,
        "scale": scale,
        "tokens": [int(differs[start:end].sum()) for start, end in state.spans],
        "largest": [finite(difference[start:end].max()) for start, end in state.spans],
    }


def replaced(state: State, tensor: Any, example: int, source: Any, dim: int) -> Any:
    """Return a copy of the tensor in which one example's tokens, along ``dim``, come from the source."""
    start, end = state.spans[example]
    copy = tensor.detach().clone()
    copy.narrow(dim, start, end - start).copy_(source.narrow(dim, start, end - start))
    return copy


# What the seams receive


def recorder(state: State, calls: list[Call], alone: tuple[str, ...]) -> Around:
    """Return a wrapper for seams that records each call and tests it alone: attention, or every function."""

    def around(bound: Bound, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            record = recorded(state, bound, kwargs)
            if bound.name in alone or "function" in alone:
                record.reach, record.largest = reach(state, function, args, kwargs, result)
            calls.append(record)
            return result

        return call

    return around


def recorded(state: State, bound: Bound, kwargs: dict[str, Any]) -> Call:
    """Note which boundaries a seam was given, as the positions where an example starts or ends."""
    return Call(
        layer=state.follower.layer,
        seam=bound.name,
        implementation=bound.target,
        bound=bound.kind,
        takes=[name for name in BOUNDARIES if name in bound.parameters],
        received={name: boundaries(name, kwargs.get(name)) for name in BOUNDARIES if name in kwargs},
    )


def boundaries(name: str, value: Any) -> list[int] | None:
    """Return the boundaries that an argument draws: [0, ..., T]; None if it was not given."""
    if value is None:
        return None
    values = value.reshape(-1).tolist()
    if name != "seq_idx":
        return [int(position) for position in values]
    return [0, *(at for at in range(1, len(values)) if values[at] != values[at - 1]), len(values)]


def reach(state: State, bound: Any, args: Any, kwargs: Any, result: Any) -> tuple[list[int] | None, float | None]:
    """Call the seam again with only the first example's tokens changed.

    Returns the number of tokens that changed in each example and the largest change in the others; (None, None) where
    no dimension of the result can be told to be the tokens'.
    """
    import torch

    outputs = next(tensors_in(result), None)  # none: some references decline and leave the work to others
    dim = None if outputs is None else token_dim(state, outputs)
    if outputs is None or dim is None:
        return None, None
    outputs = outputs.detach()
    generator = torch.Generator().manual_seed(1)

    def other(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        along = token_dim(state, value)
        if along is None or not value.is_floating_point() or value.dim() < 3:
            return value.detach()
        noise = torch.randn(value.shape, generator=generator).to(value) * value.detach().abs().mean()
        return replaced(state, value, 0, like(noise, value), along)

    with torch.no_grad():
        again = bound(*[other(value) for value in args], **{name: other(value) for name, value in kwargs.items()})
    again = next(tensors_in(again))
    difference = (again - outputs).abs().movedim(dim, 0).reshape(state.tokens, -1).amax(-1)
    tokens = [int((difference[start:end] != 0).sum()) for start, end in state.spans]
    return tokens, finite(difference[state.spans[0][1] :].max())


def like(noise: Any, value: Any) -> Any:
    """Keep the sign of inputs that never are positive or negative: gates above 0 would make the state explode."""
    if bool((value <= 0).all()):
        return -noise.abs()
    return noise.abs().clamp(max=1.0) if bool(((value >= 0) & (value <= 1)).all()) else noise


def token_dim(state: State, tensor: Any) -> int | None:
    """Return the one dimension as long as the pack; None if there is none or more than one."""
    fitting = [dim for dim, size in enumerate(tensor.shape) if size == state.tokens]
    return fitting[0] if len(fitting) == 1 else None
