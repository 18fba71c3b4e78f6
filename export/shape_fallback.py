"""Find the least that must be fixed for a runtime to take a model.

LiteRT takes most models at any shape, some only at a known batch (recurrent layers,
shifted windows), a few only at known lengths. What it refuses is known only from
trying, so shapes are fixed rung by rung, and only where they were refused.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from keras_attn.export.errors import RefusedError
from keras_attn.export.inference import trace, unrolled
from keras_attn.export.samples import Inputs
from keras_attn.export.shapes import (
    Specs,
    batch_of,
    fixed,
    fixed_like,
    open_batch,
    open_lengths,
)
from keras_attn.export.signatures import PREFILL, STEP, Signature

# The rungs: as asked for; a known batch; known lengths too.
_AS_ASKED, _BATCH, _LENGTHS = range(3)


@dataclass(frozen=True)
class Climbed:
    """Where the climb ended.

    Attributes:
        functions: The concrete functions that were taken, by signature name.
        specs: Their inputs, by signature name.
        result: What the attempt returned.
        notes: What had to be fixed, and why.
    """

    functions: dict
    specs: dict[str, Specs]
    result: Any
    notes: tuple[str, ...]


def climb(
    signatures: list[Signature],
    attempt: Callable[[dict, dict[str, Specs]], Any],
    batch_size: int | None,
    sequence_length: int | Mapping[str, int] | None,
    sample: Inputs | None,
    may_fix: bool,
    unroll: bool = False,
    num_beams: int | None = None,
) -> Climbed:
    """Traces, attempts, and fixes what was refused until an attempt succeeds.

    Args:
        signatures: `[serve]` or `[prefill, step]`.
        attempt: Takes the traced functions and their input specs, by signature name;
            raises `RefusedError` for what fixed shapes might mend.
        batch_size: As asked for, see `export`.
        sequence_length: As asked for, see `export`.
        sample: The caller's inputs, whose lengths are used when one must be known.
        may_fix: Whether to fix anything that was not asked for.
        unroll: Whether to unroll recurrent layers where all lengths are known.
        num_beams: As asked for, see `export`.

    Returns:
        The functions of the attempt that succeeded.

    Raises:
        RefusedError: Refused at every rung.
    """
    rungs = dict.fromkeys((signature.name for signature in signatures), _AS_ASKED)
    shapes = {name: value.shape for name, value in (sample or {}).items()}
    notes: list[str] = []
    while True:
        functions, specs = _trace_all(
            signatures, rungs, batch_size, sequence_length, shapes, unroll, num_beams
        )
        try:
            result = attempt(functions, specs)
            return Climbed(functions, specs, result, tuple(notes))
        except RefusedError as error:
            if not may_fix:
                raise
            for name in error.signatures or tuple(rungs):
                note = _next_rung(name, rungs, specs, shapes)
                if note:
                    notes.append(f"{note}: {error}")
                    break
            else:
                error.mend = _mend(specs) or error.mend
                raise


def _trace_all(
    signatures: list[Signature],
    rungs: dict[str, int],
    batch_size: int | None,
    sequence_length: int | Mapping[str, int] | None,
    shapes: dict[str, tuple],
    unroll: bool,
    num_beams: int | None,
) -> tuple[dict, dict[str, Specs]]:
    functions, specs = {}, {}
    for signature in signatures:
        name, rung = signature.name, rungs[signature.name]
        if name == STEP:
            # The state is what `prefill` takes and returns, of the sizes it has there;
            # its batch is that of the beams.
            state = {**specs[PREFILL], **functions[PREFILL].structured_outputs}
            wanted = fixed_like(
                signature.inputs, {key: value.shape for key, value in state.items()}
            )
            rows = batch_of(specs[PREFILL]) or 1
            batch = rows if rung >= _BATCH else None
            batch = rows * num_beams if num_beams else batch
        else:
            wanted = fixed(signature.inputs, None, sequence_length)
            batch = batch_size or (1 if rung >= _BATCH else None)
            if rung >= _LENGTHS:
                wanted = fixed_like(wanted, shapes)
        specs[name] = fixed(wanted, batch)
        static = not open_lengths(specs[name])
        with unrolled([signature.model]) if unroll and static else nullcontext():
            functions[name] = trace(signature, specs[name])
    return functions, specs


def _next_rung(
    name: str, rungs: dict[str, int], specs: dict[str, Specs], shapes: dict[str, tuple]
) -> str | None:
    """Moves one signature up; returns what that fixes, or None if nothing is left."""
    if open_batch(specs[name]):
        rungs[name] = _BATCH
        return f"`{name}` takes a batch of {_fixed_batch(name, specs)}"
    # The lengths of a state are fixed where they arise.
    source = PREFILL if name == STEP else name
    if rungs[source] < _LENGTHS and open_lengths(specs[source]) and shapes:
        rungs[source] = _LENGTHS
        return f"`{source}` takes the lengths of `sample_inputs`"
    return None


def _fixed_batch(name: str, specs: dict[str, Specs]) -> int:
    return (batch_of(specs[PREFILL]) or 1) if name == STEP else 1


def _mend(specs: dict[str, Specs]) -> str | None:
    """What the caller may still do about a refusal."""
    unknown = sorted(
        {name for inputs in specs.values() for name in open_lengths(inputs)}
    )
    if unknown:
        names = ", ".join(f"`{name}`" for name in unknown)
        return (
            f"Sizes of {names} are unknown: pass `sequence_length`, or `sample_inputs` "
            "of the lengths to ship"
        )
    return None
