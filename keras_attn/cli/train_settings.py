"""The options of `keras-attn train`."""

import inspect
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from keras_attn.cli.options import Panel

_TEXTS, _MODEL, _TRAINING = Panel("Texts"), Panel("Model"), Panel("Training")
_MAX_LENGTHS = {"subword": 50, "character": 200}
# Options that do not define a run: of its texts a hash is compared, and the score does
# not change training.
_NOT_OF_A_RUN = {"source", "target", "validation_source", "validation_target"}
_NOT_OF_A_RUN |= {"validation_fraction", "score", "run_dir"}
# The sizes that only some builders have.
_OWN_SIZES = ("embedding_dim", "num_layers", "num_heads", "mlp_dim")
# Of a Transformer, as the paper's base model has them for each head.
_HEAD_DIM, _WARMUP_STEPS = 64, 1000


@dataclass(frozen=True)
class Settings:
    """The options of `keras-attn train`, each with its help and its default."""

    source: Annotated[
        Path,
        _TEXTS.file(
            "Text to translate: UTF-8, one sentence per line; gzip if it ends in .gz."
        ),
    ]
    target: Annotated[
        Path, _TEXTS.file("Its translation: line n translates line n of --source.")
    ]
    validation_source: Annotated[
        Path | None, _TEXTS.file("Validation text. Default: see --validation-fraction.")
    ] = None
    validation_target: Annotated[Path | None, _TEXTS.file("Its translation.")] = None
    validation_fraction: Annotated[
        float,
        _TEXTS.number(
            "Fraction of the pairs to hold out if no validation files are given.",
            min=0.0001,
            max=0.5,
        ),
    ] = 0.1
    model: Annotated[
        str,
        _MODEL.option(
            "Architecture: seq2seq_sutskever, seq2seq_context, rnnencdec_30, "
            "rnnencdec_50, rnnsearch_30, rnnsearch_50, transformer_base or "
            "transformer_big. The options below set the sizes, not the paper."
        ),
    ] = "rnnsearch_50"
    tokenizer: Annotated[
        Literal["subword", "character"],
        _MODEL.option("Unit of a token: a byte-pair subword or a character."),
    ] = "subword"
    vocabulary_size: Annotated[
        int,
        _MODEL.count(
            "Maximum number of subwords on each side; of a Transformer, of both sides "
            "together.",
            min=5,
        ),
    ] = 8000
    max_length: Annotated[
        int | None,
        _MODEL.count(
            "Tokens after which a text is truncated. Default: 50 subwords, "
            "200 characters.",
            min=2,
        ),
    ] = None
    hidden_dim: Annotated[
        int,
        _MODEL.count(
            "Units of each recurrent layer, papers: 1000; width of a Transformer, "
            "paper: 512.",
            min=2,
        ),
    ] = 256
    embedding_dim: Annotated[
        int | None,
        _MODEL.count(
            "Width of a token's embedding, of a recurrent model; papers: 100-1000. "
            "Default: 256."
        ),
    ] = None
    num_layers: Annotated[
        int | None,
        _MODEL.count(
            "Blocks per side of a Transformer, paper: 6, default: 3; or LSTMs per side "
            "of seq2seq_sutskever, paper and default: 4."
        ),
    ] = None
    num_heads: Annotated[
        int | None,
        _MODEL.count(
            "Attention heads of a Transformer; paper: 8. Default: one for each 64 of "
            "--hidden-dim."
        ),
    ] = None
    mlp_dim: Annotated[
        int | None,
        _MODEL.count(
            "Units of a Transformer's feed-forward layers; paper: 2048. Default: 4 × "
            "--hidden-dim."
        ),
    ] = None
    dropout: Annotated[
        float,
        _MODEL.number(
            "Probability, in [0, 0.9]; papers: 0, of the Transformer 0.1.",
            min=0.0,
            max=0.9,
        ),
    ] = 0.2
    epochs: Annotated[int, _TRAINING.count("Passes over the pairs.")] = 10
    batch_size: Annotated[int, _TRAINING.count("Pairs per step.")] = 64
    learning_rate: Annotated[
        float,
        _TRAINING.number(
            "Largest learning rate of Adam, with cosine decay to zero.", min=1e-8
        ),
    ] = 1e-3
    warmup_steps: Annotated[
        int | None,
        _TRAINING.count(
            "Updates until the largest learning rate, which rises linearly. Default: "
            "0; of a Transformer 1000, or a tenth of all updates if that is less.",
            min=0,
        ),
    ] = None
    label_smoothing: Annotated[
        float | None,
        _TRAINING.number(
            "Share of each target's probability that is spread over all tokens; "
            "Transformer's paper: 0.1. Default: 0.",
            min=0.0,
            max=0.9,
        ),
    ] = None
    score: Annotated[
        Literal["bleu", "exact_match"],
        _TRAINING.option(
            "Score of the held-out translations: BLEU (0 to 100), or the "
            "fraction that equal their reference exactly."
        ),
    ] = "bleu"
    run_dir: Annotated[
        Path,
        _TRAINING.option(
            "Folder for the translator, its history and TensorBoard logs. Run "
            "the same command again to resume an interrupted run.",
            file_okay=False,
        ),
    ] = Path("runs/translator")
    seed: Annotated[
        int,
        _TRAINING.count(
            "Seed of the weights, the data order and the held-out pairs.", min=0
        ),
    ] = 0

    @property
    def tokens(self) -> int:
        """Tokens after which a text is truncated."""
        return self.max_length or _MAX_LENGTHS[self.tokenizer]

    @property
    def own_sizes(self) -> dict[str, int]:
        """The sizes that not every builder has, as they are passed to this one.

        Raises:
            ValueError: If a size is given that the builder of `model` does not have.
        """
        arguments = builder_arguments(self.model)
        given = {name: getattr(self, name) for name in _OWN_SIZES}
        given = {name: value for name, value in given.items() if value is not None}
        for name, value in given.items():
            if name not in arguments:
                others = [x for x in ("hidden_dim", *_OWN_SIZES) if x in arguments]
                raise ValueError(
                    f"{_option(name)} is no size of {self.model}, which has "
                    f"{', '.join(map(_option, others))}. "
                    f"Received: {_option(name)} {value}"
                )
        usual = {"embedding_dim": 256}
        if "num_heads" in arguments:
            most = max(1, self.hidden_dim // _HEAD_DIM)
            heads = next(n for n in range(most, 0, -1) if self.hidden_dim % n == 0)
            usual = {
                "num_layers": 3,
                "num_heads": heads,
                "mlp_dim": 4 * self.hidden_dim,
            }
        return {**usual, **given}

    def warmup(self, num_pairs: int) -> int:
        """The updates of the warm-up, without which a Transformer learns badly.

        Args:
            num_pairs: Number of pairs to train on.

        Raises:
            ValueError: If all updates would be warm-up.
        """
        num_steps = self.epochs * -(-num_pairs // self.batch_size)
        if self.warmup_steps is None:
            is_transformer = "num_heads" in builder_arguments(self.model)
            return min(_WARMUP_STEPS, num_steps // 10) if is_transformer else 0
        if self.warmup_steps >= num_steps:
            raise ValueError(
                f"--warmup-steps must be less than the {num_steps} updates of the run. "
                f"Received: --warmup-steps {self.warmup_steps}"
            )
        return self.warmup_steps

    def identity(self) -> dict[str, Any]:
        """The settings, without texts, that must be equal when the run is resumed."""
        found = {
            each.name: getattr(self, each.name)
            for each in fields(self)
            if each.name not in _NOT_OF_A_RUN
        }
        found = {name: value for name, value in found.items() if value is not None}
        return {**found, **self.own_sizes, "max_length": self.tokens}


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def builder_arguments(model: str) -> tuple[str, ...]:
    """The names of the arguments of a model's builder.

    Args:
        model: A name from `keras-attn list`.
    """
    from keras_attn.models.catalog.registry import entry

    return tuple(inspect.signature(entry(model).builder).parameters)
