import sys

import numpy as np
import pytest

from keras_attn.metrics import bleu, exact_match

pytest.importorskip("sacrebleu", reason="BLEU needs the extra `eval`")


def test_exact_match():
    assert exact_match(["a", "b", "c "], ["a", "B", "c"]) == pytest.approx(1 / 3)
    assert exact_match(["a"], ["a"]) == 1.0


def test_bleu_by_hand():
    # Papineni et al. 2002, section 2. Of the first translation, 5 of 6 words occur in
    # its reference, 3 of 5 bigrams, 2 of 4 trigrams and 1 of 3 4-grams; of the second,
    # all 4, 3, 2 and 1. Together they have 10 words and the references 12, so the
    # brevity penalty applies.
    translations = ["the cat sat on a mat", "it was very happy"]
    references = ["the cat sat on the mat", "it was very happy about it"]
    precisions = [9 / 10, 6 / 8, 4 / 6, 2 / 4]
    brevity = np.exp(1 - 12 / 10)
    by_hand = 100 * brevity * np.exp(np.mean(np.log(precisions)))
    assert bleu(translations, references) == pytest.approx(by_hand, rel=1e-9)
    assert bleu(references, references) == pytest.approx(100)
    # Corpus BLEU is not the mean over sentences.
    parts = [
        bleu([ours], [theirs])
        for ours, theirs in zip(translations, references, strict=True)
    ]
    assert abs(np.mean(parts) - by_hand) > 0.5


@pytest.mark.parametrize("score", [bleu, exact_match])
def test_unpaired_translations_are_refused(score):
    message = "must have the same length, at least 1. Received: 2 translations, 1 ref"
    with pytest.raises(ValueError, match=message):
        score(["a", "b"], ["a"])
    with pytest.raises(ValueError, match="Received: 0 translations, 0 references"):
        score([], [])


def test_bleu_without_sacrebleu_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(ImportError, match=r'pip install "keras-attn\[eval\]"'):
        bleu(["a"], ["a"])
