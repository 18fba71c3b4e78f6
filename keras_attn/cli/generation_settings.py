"""The settings for transformers' `generate` in a `generation_config.json`.

Here only the options of the command choose tokens, so a note says what is not applied.
"""

from pathlib import Path
from typing import Any

from keras_attn.cli.terminal import note
from keras_attn.files.reading import read_json, shown

NAME = "generation_config.json"
# Settings that choose other tokens, and the values that do not.
_CHOOSING: dict[str, tuple[Any, ...]] = {
    "bad_words_ids": ([],),
    "begin_suppress_tokens": ([],),
    "constraints": ([],),
    "diversity_penalty": (0.0,),
    "do_sample": (False,),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1.0,),
    "exponential_decay_length_penalty": ([],),
    "force_words_ids": ([],),
    "forced_bos_token_id": (),
    "forced_decoder_ids": ([],),
    "forced_eos_token_id": (),
    "guidance_scale": (1.0,),
    "length_penalty": (1.0,),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "no_repeat_ngram_size": (0,),
    "num_beams": (1,),
    "penalty_alpha": (0.0,),
    "repetition_penalty": (1.0,),
    "sequence_bias": ([], {}),
    "stop_strings": ([],),
    "suppress_tokens": ([],),
}
# And those that count if `do_sample` is true.
_SAMPLING: dict[str, tuple[Any, ...]] = {
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
    "min_p": (0.0,),
    "temperature": (1.0,),
    "top_h": (),
    "top_k": (0,),
    "top_p": (1.0,),
    "typical_p": (1.0,),
}


def note_settings(folder: Path, end_token_id: int | None) -> None:
    """Says which settings of a folder are not applied.

    Args:
        folder: The folder of the model; it may lack the file.
        end_token_id: Where texts end here, by the tokenizer.

    Raises:
        ValueError: If the file is not a JSON object.
    """
    if not (folder / NAME).is_file():
        return
    fields = read_json(folder / NAME)
    known = _CHOOSING | (_SAMPLING if fields.get("do_sample") else {})
    asked = [
        f"{name}={shown(fields[name])}"
        for name, idle in known.items()
        if fields.get(name) is not None and fields[name] not in idle
    ]
    ends = fields.get("eos_token_id")
    ends = ends if isinstance(ends, list) else [ends]
    if any(end not in (None, end_token_id) for end in ends):
        asked.append(f"eos_token_id={shown(fields['eos_token_id'])}")
    if asked:
        note(
            f"{NAME} asks for {', '.join(asked)}: not applied, because the options of "
            "this command choose the tokens, and the tokenizer's end token ends a text"
        )
