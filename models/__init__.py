"""Model families: one paper, one file, built by plain functions."""

if __name__ != "keras_attn.models":
    raise ImportError(
        "This folder is the source of `keras_attn.models`; import it by that name. "
        f"A second copy (imported here as `{__name__}`) would register every Keras "
        "class twice."
    )

from keras_attn.models.ask_attend_answer import build_vqa_ask_attend_answer
from keras_attn.models.bert import (
    build_bert,
    build_bert_classifier,
    build_bert_masked_lm,
    build_bert_next_sentence,
    build_bert_pretrainer,
    build_bert_sentence_encoder,
    build_bert_span_qa,
    build_bert_token_classifier,
)
from keras_attn.models.catalog.registry import (
    ModelCard,
    count_parameters,
    create,
    describe,
    list_models,
)
from keras_attn.models.checkpoints import (
    load_checkpoint,
    load_lora,
    push_checkpoint,
    save_checkpoint,
    save_lora,
)
from keras_attn.models.clip import (
    build_clip,
    build_clip_image_encoder,
    build_clip_text_encoder,
)
from keras_attn.models.convnext import build_convnext
from keras_attn.models.dalle import build_dalle
from keras_attn.models.deconvnet import build_deconvnet
from keras_attn.models.deit3 import build_deit3
from keras_attn.models.detection import (
    build_faster_rcnn,
    build_faster_rcnn_vgg16,
    build_mask_rcnn,
)
from keras_attn.models.dvae import build_dvae
from keras_attn.models.fcn import build_fcn_resnet, build_fcn_vgg
from keras_attn.models.gpt import build_gpt
from keras_attn.models.gpt_tasks import (
    build_gpt_classifier,
    build_gpt_encoder,
    build_gpt_token_classifier,
)
from keras_attn.models.listen_attend_spell import build_listen_attend_spell
from keras_attn.models.listen_attend_walk import build_listen_attend_walk
from keras_attn.models.mae import build_mae
from keras_attn.models.parts.backbones.convolutional import convolutionize
from keras_attn.models.parts.classifying import decode_predictions, preprocess_input
from keras_attn.models.parts.pair_encoders import (
    caption_encoder,
    picture_encoder,
)
from keras_attn.models.parts.preprocessing import (
    image_preprocessing,
    with_preprocessing,
)
from keras_attn.models.parts.text_to_image import (
    GeneratedImages,
    generate_images,
)
from keras_attn.models.parts.zero_shot import (
    ZERO_SHOT_TEMPLATES,
    zero_shot_classifier,
)
from keras_attn.models.plans.layout import layout_map
from keras_attn.models.plans.planning import Plan, plan
from keras_attn.models.plans.training_run import TrainingRun, training_run
from keras_attn.models.resnet import build_resnet
from keras_attn.models.reward_models import as_reward_model, normalize_scores
from keras_attn.models.rnnsearch import build_rnnsearch
from keras_attn.models.roberta import (
    build_roberta,
    build_roberta_classifier,
    build_roberta_masked_lm,
    build_roberta_next_sentence,
    build_roberta_sentence_encoder,
    build_roberta_span_qa,
    build_roberta_token_classifier,
)
from keras_attn.models.sagan import (
    build_cnn_self_attention,
    build_sagan_discriminator,
    build_sagan_generator,
)
from keras_attn.models.segnet import build_segnet
from keras_attn.models.seq2seq import (
    build_seq2seq_context,
    build_seq2seq_sutskever,
)
from keras_attn.models.show_and_tell import build_caption_show_and_tell
from keras_attn.models.show_ask_attend_answer import build_vqa_show_ask_attend_answer
from keras_attn.models.show_attend_interact import build_show_attend_interact
from keras_attn.models.show_attend_read import build_show_attend_read
from keras_attn.models.show_attend_tell import build_caption_show_attend_tell
from keras_attn.models.siglip import build_siglip
from keras_attn.models.swin import build_swin
from keras_attn.models.transformer import build_transformer
from keras_attn.models.transformer_captioners import (
    build_caption_cnn_transformer,
    build_caption_vit_transformer,
)
from keras_attn.models.unet import build_unet
from keras_attn.models.vgg import build_vgg
from keras_attn.models.vilbert import (
    build_vilbert,
    build_vilbert_classifier,
    build_vilbert_pretrainer,
    build_vilbert_referring,
    build_vilbert_scorer,
)
from keras_attn.models.vit import build_vit, build_vit_hybrid
from keras_attn.models.vln_bert import (
    build_vln_bert,
    build_vln_bert_pretrainer,
    build_vln_bert_scorer,
)
from keras_attn.models.xlm import (
    build_xlm,
    build_xlm_classifier,
    build_xlm_masked_lm,
    build_xlm_next_sentence,
    build_xlm_sentence_encoder,
    build_xlm_span_qa,
    build_xlm_token_classifier,
)
from keras_attn.models.xlnet import (
    build_xlnet,
    build_xlnet_classifier,
    build_xlnet_next_sentence,
    build_xlnet_permutation_lm,
    build_xlnet_sentence_encoder,
    build_xlnet_span_qa,
    build_xlnet_token_classifier,
)

__all__ = [
    "GeneratedImages",
    "ModelCard",
    "Plan",
    "TrainingRun",
    "ZERO_SHOT_TEMPLATES",
    "as_reward_model",
    "build_bert",
    "build_bert_classifier",
    "build_bert_masked_lm",
    "build_bert_next_sentence",
    "build_bert_pretrainer",
    "build_bert_sentence_encoder",
    "build_bert_span_qa",
    "build_bert_token_classifier",
    "build_caption_cnn_transformer",
    "build_caption_show_and_tell",
    "build_caption_show_attend_tell",
    "build_caption_vit_transformer",
    "build_clip",
    "build_clip_image_encoder",
    "build_clip_text_encoder",
    "build_cnn_self_attention",
    "build_convnext",
    "build_dalle",
    "build_deconvnet",
    "build_deit3",
    "build_dvae",
    "build_faster_rcnn",
    "build_faster_rcnn_vgg16",
    "build_fcn_resnet",
    "build_fcn_vgg",
    "build_gpt",
    "build_gpt_classifier",
    "build_gpt_encoder",
    "build_gpt_token_classifier",
    "build_listen_attend_spell",
    "build_listen_attend_walk",
    "build_mae",
    "build_mask_rcnn",
    "build_resnet",
    "build_rnnsearch",
    "build_roberta",
    "build_roberta_classifier",
    "build_roberta_masked_lm",
    "build_roberta_next_sentence",
    "build_roberta_sentence_encoder",
    "build_roberta_span_qa",
    "build_roberta_token_classifier",
    "build_sagan_discriminator",
    "build_sagan_generator",
    "build_segnet",
    "build_seq2seq_context",
    "build_seq2seq_sutskever",
    "build_show_attend_interact",
    "build_show_attend_read",
    "build_siglip",
    "build_swin",
    "build_transformer",
    "build_unet",
    "build_vgg",
    "build_vilbert",
    "build_vilbert_classifier",
    "build_vilbert_pretrainer",
    "build_vilbert_referring",
    "build_vilbert_scorer",
    "build_vit",
    "build_vit_hybrid",
    "build_vln_bert",
    "build_vln_bert_pretrainer",
    "build_vln_bert_scorer",
    "build_vqa_ask_attend_answer",
    "build_vqa_show_ask_attend_answer",
    "build_xlm",
    "build_xlm_classifier",
    "build_xlm_masked_lm",
    "build_xlm_next_sentence",
    "build_xlm_sentence_encoder",
    "build_xlm_span_qa",
    "build_xlm_token_classifier",
    "build_xlnet",
    "build_xlnet_classifier",
    "build_xlnet_next_sentence",
    "build_xlnet_permutation_lm",
    "build_xlnet_sentence_encoder",
    "build_xlnet_span_qa",
    "build_xlnet_token_classifier",
    "caption_encoder",
    "convolutionize",
    "count_parameters",
    "create",
    "describe",
    "generate_images",
    "decode_predictions",
    "image_preprocessing",
    "preprocess_input",
    "layout_map",
    "list_models",
    "load_checkpoint",
    "load_lora",
    "normalize_scores",
    "picture_encoder",
    "plan",
    "push_checkpoint",
    "save_checkpoint",
    "save_lora",
    "training_run",
    "with_preprocessing",
    "zero_shot_classifier",
]


def __dir__():
    return __all__
