"""Layers have the names that their modules list, which checkpoints depend on."""

import itertools
import re

import pytest
from model_cases import CASES, layer_names, tiny

GPT = "token_embedding position_embedding embeddings_dropout block_0 block_1"
XLM = f"{GPT} language_embedding embeddings_norm first_token"
BERT = f"{GPT} segment_embedding embeddings_norm first_token pooler"
LSTMS = "source_embedding source_dropout target_embedding target_dropout logits"
GRUS = f"{LSTMS} encoder initial_state decoder readout_inputs readout maxout"
CAPTIONS = "places image_vector word_embedding decoder hidden_dropout logits"
TELL = f"{CAPTIONS} image_embedding word_dropout"
NAMES = {
    **{"bert_base": BERT, "roberta_base": BERT, "xlm_mlm_tlm_xnli15": XLM},
    **{"gpt_117m": GPT, "gpt2_small": f"{GPT} final_norm"},
    "xlnet_base-memory": "token_embedding embeddings_dropout target_embedding block_0 "
    "relative_positions positions_dropout block_1 output_dropout last_token "
    "segment_memory",
    "seq2seq_sutskever": f"{LSTMS} encoder_0 encoder_1 decoder_0 decoder_1",
    "seq2seq_context": f"{GRUS} readout_dropout",
    "rnnsearch_50": f"{GRUS} readout_dropout",
    "caption_show_and_tell": TELL,
    "caption_show_and_tell-context": f"{TELL} initial_state initial_cell",
    "caption_show_attend_tell": f"{CAPTIONS} initial_hidden initial_dropout "
    "initial_state initial_cell attention_objective hidden_readout context_readout "
    "readout readout_dropout",
}
MASKED_LM = "masked_lm_transform masked_lm_norm masked_lm_logits"
CLASSIFIER = "classifier_dropout classifier"
HEADS = {
    **{"bert_masked_lm": MASKED_LM, "roberta_masked_lm": MASKED_LM},
    "xlm_masked_lm": "masked_lm_logits",  # The matrix is the embedding itself.
    **{"bert_classifier": CLASSIFIER, "bert_token_classifier": CLASSIFIER},
    "roberta_classifier": f"{CLASSIFIER} classifier_hidden classifier_hidden_dropout",
    **{"bert_next_sentence": "next_sentence", "bert_span_qa": "span_dropout span"},
    "bert_sentence_encoder": "sentence_pooling sentence_norm",
}


@pytest.mark.parametrize("case", [x for x in NAMES if x in CASES])
def test_layers_have_their_documented_names(case):
    assert layer_names(tiny(case)) == set(NAMES[case].split())


@pytest.mark.parametrize("case", HEADS)
def test_a_head_adds_its_layers_to_those_of_its_encoder_that_it_uses(case):
    added = layer_names(tiny(case)) - layer_names(tiny(CASES[case].name))
    assert added == set(HEADS[case].split())


# All weights of a model, or all of its decoder; CELL is a weight of a recurrent cell.
PATHS = {
    "seq2seq_sutskever": "{source,target}_embedding/embeddings logits/{kernel,bias} "
    "encoder_0/encoder_0_cell/CELL encoder_1/encoder_1_cell/CELL "
    "decoder_0/decoder_0_cell/CELL decoder_1/decoder_1_cell/CELL",
    "listen_attend_spell": "speller/token_embedding/embeddings "
    "listener_{0,1,2}/blstm/{forward,backward}_direction/cell/CELL "
    "speller/cell_{0,1}/CELL "
    "speller/{attention/query_mlp,attention/key_mlp,readout,logits}/{kernel,bias}",
    "listen_attend_walk": "word_embedding/embeddings "
    "encoder/{forward,backward}_direction/cell/CELL decoder/decoder_cell/CELL "
    "decoder/attention/{query/kernel,key/kernel,score_vector} "
    "{world_embedding,state_readout,context_readout,logits}/kernel",
}
PATHS_OF_DECODERS = {
    "rnnsearch_50": "decoder/decoder_cell/CELL "
    "decoder/attention/{query/kernel,key/kernel,score_vector}",
    "caption_show_attend_tell": "decoder/gate_{kernel,bias} decoder/decoder_cell/CELL "
    "decoder/attention/{query/kernel,key/kernel,key/bias,score_vector}",
}


def expanded(paths):
    """Each of the alternatives in braces, as in a shell."""
    for path in paths.replace("CELL", "{kernel,recurrent_kernel,bias}").split():
        parts = [part.split(",") for part in re.split("[{}]", path)]
        yield from map("".join, itertools.product(*parts))


@pytest.mark.parametrize("case", [*PATHS, *PATHS_OF_DECODERS])
def test_weights_have_fixed_paths(case):
    paths = {weight.path for weight in tiny(case).weights}
    if case in PATHS_OF_DECODERS:
        paths = {path for path in paths if path.startswith("decoder/")}
    assert paths == {*expanded({**PATHS, **PATHS_OF_DECODERS}[case])}
