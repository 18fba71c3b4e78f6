"""The public names, as a snapshot: adding one is deliberate, losing one is breaking."""

import importlib

import pytest

PUBLIC = {
    "keras_attn": ("data decoding export layers models ops training translator viz"),
    "keras_attn.data": (
        "ByteLevelBPETokenizer CharacterTokenizer SentencePieceTokenizer "
        "StreamDecoder SubwordTokenizer TextTokenizer Tokenizer "
        "WordPieceTokenizer load_multi30k load_text_tokenizer load_tokenizer "
        "make_dates parallel_dataset read_parallel split_dates"
    ),
    "keras_attn.decoding": "Beam Generated Greedy IncrementalPair Sample generate",
    "keras_attn.export": (
        "ExportError ExportReport Runner SignatureInfo TensorInfo export load_runner "
        "verify"
    ),
    "keras_attn.layers": (
        "AdditiveAttention AttentionRNN DotProductAttention FeedForward "
        "LearnedPositionEmbedding Maxout MultiHeadAttention ScoredAttention "
        "SinusoidalPositionEmbedding TransformerDecoderBlock TransformerEncoderBlock"
    ),
    "keras_attn.models": (
        "ModelCard build_rnnsearch build_seq2seq_context build_seq2seq_sutskever "
        "count_parameters create describe list_models"
    ),
    "keras_attn.training": (
        "CosineWarmup InverseSquareRootSchedule LinearWarmup MaskedLMMasking "
        "PermutationLMMasking Perplexity SmoothedCrossEntropy TranslationScore "
        "bleu causal_lm_dataset exact_match fit_translator language_probabilities "
        "mask_batches next_sentence_dataset next_sentence_pairs pack_documents "
        "sample_languages translation_lm_dataset"
    ),
    "keras_attn.viz": "callbacks capture_attention plot_alignment save_figure",
}


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names(name):
    module = importlib.import_module(name)
    assert sorted(module.__all__) == PUBLIC[name].split()
    for public in module.__all__:
        assert hasattr(module, public)


@pytest.mark.parametrize("folder", ["models", "export"])
def test_a_second_copy_is_refused(folder, monkeypatch):
    monkeypatch.syspath_prepend(".")
    with pytest.raises(ImportError, match=f"keras_attn.{folder}"):
        importlib.import_module(folder)


def test_a_name_that_is_not_there():
    import keras_attn

    with pytest.raises(AttributeError, match="nowhere"):
        _ = keras_attn.nowhere
