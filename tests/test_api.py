"""The public names, as a snapshot: adding one is deliberate, losing one is breaking.

The builders of models after 0.1.0 are added by their line in CHANGELOG.md.
"""

import importlib
import inspect
import re
from pathlib import Path

import layer_cases
import pytest
from layer_cases import NOT_INSTANTIATED

PUBLIC = {
    "keras_attn": (
        "data decoding export layers losses metrics models ops script_arguments tiling "
        "training translator viz"
    ),
    "keras_attn.data": (
        "Building ByteLevelBPETokenizer CLIPTokenizer CharacterTokenizer "
        "CompletionTexts DetectionData DetectionExample ElasticDeformation FONTS "
        "FoundPicture GlueData ImageClassData ImageTextData ImageTextExample "
        "JSONTokenizer LabeledTexts PathRegions PictureIndex PreferenceTexts "
        "RandomColors RandomMirror RandomQuarterTurns RandomScaleAndCrop RankingTexts "
        "RegionData RenderedWords SegmentationData SentencePieceTokenizer Shapes "
        "ShapesExample SocialScene StreamDecoder SubwordTokenizer TextTokenizer "
        "Tokenizer VQAData VQAExample ViewpointRegions Walk WalkData WalkExample "
        "WalkSimulator Waveforms WordExample WordPieceTokenizer augment_batches "
        "caption_dataset causal_lm_dataset check_boxes check_labels completion_dataset "
        "decode_images default_index_file detect_regions detection_dataset "
        "from_keras_cv hang_pictures hold_out image_class_dataset image_text_dataset "
        "index_pictures instruction_words language_probabilities load_cifar10 "
        "load_multi30k load_text_tokenizer load_tokenizer make_dates "
        "next_sentence_dataset next_sentence_pairs normalize_answer pack_documents "
        "pad_waveforms parallel_dataset path_choice_dataset path_pair_dataset "
        "picture_instructions preference_dataset prompt_dataset random_words "
        "ranking_dataset read_audio read_building read_coco read_coco_captions "
        "read_completions read_glue read_image_classes read_image_texts "
        "read_labeled_texts read_named_pictures read_parallel read_preferences "
        "read_r2r read_rankings read_regions read_segmentation read_sst2 read_voc "
        "read_vqa read_wav read_waveforms read_yolo record_dataset region_dataset "
        "sample_languages segmentation_dataset shuffled_dataset split_batches "
        "split_dates three_augment_dataset to_keras_cv translation_lm_dataset "
        "view_regions vqa_dataset walk_dataset way_regions whole_batches"
    ),
    "keras_attn.decoding": (
        "Beam Candidate Completion DraftModel Generated Greedy IncrementalPair "
        "PromptLookup Sample ScoredText Speculated Walked generate generate_all "
        "language_model_scorer log_likelihood next_state rescore walk walk_candidates"
    ),
    "keras_attn.export": (
        "ExportError ExportReport Runner SignatureInfo TensorInfo decoder export "
        "freeze load_runner verify"
    ),
    # Each has a case in the contract of layers, or a reason for none.
    "keras_attn.layers": " ".join(sorted({**layer_cases.CASES, **NOT_INSTANTIATED})),
    "keras_attn.losses": (
        "ChoiceCrossEntropy MaskedPatchLoss MaskedRegionLoss PolicyLoss RankingLoss "
        "ReferringCrossEntropy SegmentationCrossEntropy SmoothedCrossEntropy "
        "SoftAnswerCrossEntropy ValueLoss border_weights clip_loss dpo_loss grpo_loss "
        "hinge_discriminator_loss hinge_generator_loss logit_laplace_loss "
        "ppo_policy_loss ppo_value_loss ranking_loss rloo_loss siglip_loss"
    ),
    "keras_attn.metrics": (
        "AttentionInside ChoiceAccuracy DetectionScoreLogger DetectionScores "
        "GlueScores MatthewsCorrelation PearsonCorrelation Perplexity RankingAccuracy "
        "ReferringAccuracy SegmentationScores SparseF1Score SpearmanCorrelation "
        "VQAAccuracy attention_inside bleu count_detection_errors evaluate_glue "
        "exact_match foreground_rand_scores glue_metrics named_objects "
        "navigation_scores retrieval_hits vqa_accuracy word_objects"
    ),
    "keras_attn.models": (
        "as_reward_model GeneratedImages ModelCard Plan TrainingRun "
        "ZERO_SHOT_TEMPLATES build_bert "
        "build_clip build_clip_image_encoder build_clip_text_encoder build_dalle "
        "build_dvae build_siglip build_vilbert build_vilbert_classifier "
        "build_vilbert_pretrainer build_vilbert_referring build_vilbert_scorer "
        "build_vln_bert build_vln_bert_pretrainer build_vln_bert_scorer "
        "build_bert_classifier build_bert_masked_lm build_bert_next_sentence "
        "build_bert_pretrainer build_bert_sentence_encoder build_bert_span_qa "
        "build_bert_token_classifier build_caption_cnn_transformer "
        "build_caption_show_and_tell build_caption_show_attend_tell "
        "build_caption_vit_transformer build_cnn_self_attention build_convnext "
        "build_deconvnet build_deit3 build_faster_rcnn build_faster_rcnn_vgg16 "
        "build_fcn_resnet build_fcn_vgg build_gpt build_gpt_classifier "
        "build_gpt_encoder build_gpt_token_classifier build_listen_attend_spell "
        "build_listen_attend_walk build_mae build_mask_rcnn build_resnet "
        "build_rnnsearch build_roberta build_roberta_classifier "
        "build_roberta_masked_lm build_roberta_next_sentence "
        "build_roberta_sentence_encoder build_roberta_span_qa "
        "build_roberta_token_classifier build_sagan_discriminator "
        "build_sagan_generator build_segnet build_seq2seq_context "
        "build_seq2seq_sutskever build_show_attend_interact build_show_attend_read "
        "build_swin build_transformer build_unet build_vgg build_vit build_vit_hybrid "
        "build_vqa_ask_attend_answer build_vqa_show_ask_attend_answer build_xlm "
        "build_xlm_classifier build_xlm_masked_lm build_xlm_next_sentence "
        "build_xlm_sentence_encoder build_xlm_span_qa build_xlm_token_classifier "
        "build_xlnet build_xlnet_classifier build_xlnet_next_sentence "
        "build_xlnet_permutation_lm build_xlnet_sentence_encoder build_xlnet_span_qa "
        "build_xlnet_token_classifier caption_encoder convolutionize count_parameters "
        "create decode_predictions describe generate_images image_preprocessing "
        "layout_map list_models load_checkpoint load_lora picture_encoder plan "
        "preprocess_input push_checkpoint save_checkpoint save_lora normalize_scores "
        "training_run with_preprocessing zero_shot_classifier"
    ),
    "keras_attn.training": (
        "AdamW AdaptiveKL AdversarialTrainer BackupAndResume CompletionSampling "
        "Completions CosineWarmup DPO DeepQ FixedKL GRPO GreedyPolicy "
        "InverseSquareRootSchedule LinearWarmup LoRAReport MaskedLMMasking PPO "
        "PermutationLMMasking PlayEpisodes QuantizationReport RLOO Rollout SampleTexts "
        "Stopwatch Truncated adapters_off dequantize enable_lora "
        "generalized_advantages grpo_advantages layerwise_rates mask_batches "
        "mask_pairs merge_lora penalize_missing_end play_episodes quantize "
        "rloo_advantages sequence_rewards set_adapters td_targets token_rewards "
        "truncate_completions whiten"
    ),
    "keras_attn.viz": (
        "AttentionSteps CoAttention MaskExample WorkedExample alignment_frames "
        "attention_comparison_page attention_layer_page attention_page "
        "attention_rollout attention_steps callbacks caption_page "
        "capture_attention capture_co_attention example_masks image_attention "
        "image_attention_page image_relevance image_rollout image_text_similarity "
        "plot_alignment plot_attention_heads plot_attention_layer "
        "plot_caption_attention plot_codes plot_detections plot_generated_images "
        "plot_glimpses plot_image_attention plot_image_masks plot_interaction "
        "plot_masks plot_model_scores plot_model_sizes plot_position_similarity "
        "plot_positions plot_reading_attention plot_receptive_field "
        "plot_reconstruction plot_region_words plot_scores_by_length "
        "plot_segmentation plot_similarity plot_speech_attention plot_walk "
        "plot_windows plot_word_regions reading_attention receptive_field "
        "reconstruct_images save_animation save_figure worked_convolution "
        "worked_transposed_convolution worked_unpooling"
    ),
}


CHANGELOG = Path(__file__).resolve().parent.parent / "CHANGELOG.md"
# A later builder is added by the line about it in the changelog.
PUBLIC["keras_attn.models"] = " ".join(
    sorted(
        {
            *PUBLIC["keras_attn.models"].split(),
            *re.findall(r"`(build_\w+)", CHANGELOG.read_text("utf-8")),
        }
    )
)


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names(name):
    module = importlib.import_module(name)
    expected = PUBLIC[name].split()
    assert sorted(module.__all__) == expected, "CHANGELOG.md must name a new builder"
    shown = [public for public in dir(module) if not public.startswith("__")]
    assert shown == expected
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


# Those of builders are in `test_signatures.py`.
@pytest.mark.parametrize("name", PUBLIC["keras_attn.layers"].split())
def test_arguments_of_layers_have_types(name):
    public = getattr(importlib.import_module("keras_attn.layers"), name)
    owner = next(x for x in public.__mro__ if "__init__" in vars(x))
    if owner.__module__.startswith("keras."):
        return  # The arguments are those of Keras' own layer.
    for argument in inspect.signature(public).parameters.values():
        if argument.kind is not argument.VAR_KEYWORD:
            assert argument.annotation is not argument.empty, argument.name
