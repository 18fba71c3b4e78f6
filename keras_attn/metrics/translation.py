"""Scores of translations: exact match and BLEU."""

from collections.abc import Sequence

from keras_attn.extras import requires_extra


def exact_match(translations: Sequence[str], references: Sequence[str]) -> float:
    """Share of translations that equal their reference exactly, in [0, 1].

    Args:
        translations: N texts.
        references: N texts, one for each translation.
    """
    _check_pairs(translations, references)
    pairs = zip(translations, references, strict=True)
    return sum(ours == theirs for ours, theirs in pairs) / len(references)


def bleu(translations: Sequence[str], references: Sequence[str]) -> float:
    """Corpus BLEU with one reference each, in [0, 100], computed by sacreBLEU.

    Args:
        translations: N texts.
        references: N texts, one for each translation.

    Reference:
        Papineni et al. 2002; Post 2018, "A Call for Clarity in Reporting BLEU Scores"
        (arXiv:1804.08771).

    Raises:
        ImportError: If the extra `eval` is not installed.
    """
    _check_pairs(translations, references)
    with requires_extra("eval", "BLEU"):
        import sacrebleu
    # It warns of texts that look tokenized, after each epoch again.
    found = sacrebleu.corpus_bleu(list(translations), [list(references)], force=True)
    return found.score


def _check_pairs(translations, references):
    if not references or len(translations) != len(references):
        raise ValueError(
            "`translations` and `references` must have the same length, at least 1. "
            f"Received: {len(translations)} translations, {len(references)} references"
        )
