"""Configurations that our models do not compute are refused, with the field named.

Those of BERT, RoBERTa and the GPTs are in `tests/models/test_checkpoint_refusals.py`.
"""

import pytest
from parity.folders import CHECKPOINTS, check_refused, config_of


def named(**fields):
    """Rows of fields that the message names with their values."""
    return [({x: y}, f"`{x}` in config.json .*{x}=") for x, y in fields.items()]


CROSS = {"model_type": "gpt2", "add_cross_attention": True}
# By the committed case: fields of `config.json`, where None removes one; and messages.
REFUSED = {
    "captioner_equal": [
        ({"decoder": None}, "`decoder` in config.json must be a configuration with"),
        ({"encoder": {"model_type": "beit"}}, "model_type='vit'.*'model_type': 'beit'"),
        ({"decoder": {"model_type": "gpt2"}}, "`add_cross_attention` .* must be True"),
        (
            {"decoder": {**CROSS, "cross_attention_hidden_size": 12}},
            "`cross_attention_hidden_size` in config.json must be None",
        ),
        ({"architectures": ["BertModel"]}, "must name one of VisionEncoderDecoder"),
    ],
    "clip_largest_id": [
        ({"text_config": {"hidden_act": "gelu"}}, "`hidden_act` .* must be the same"),
        ({"vision_config": {"layer_norm_eps": 1.0}}, "`layer_norm_eps` .* the same"),
        ({"text_config": {"eos_token_id": [5, 6]}}, "`eos_token_id` in config.json"),
        ({"text_config": {"eos_token_id": 97}}, r"`end_token_id` must be in \[0, 97"),
        ({"text_config": {"vocab_size": 96}}, "token_embedding.weight is"),
        ({"vision_config": {"image_size": 28}}, "position_embedding.weight is"),
        ({"text_config": 3}, "`text_config` in config.json must be the configuration"),
        ({"projection_dim": 16}, "projection.weight is"),
    ],
    "siglip_plain": [
        ({"vision_config": {"vision_use_head": False}}, "`vision_use_head` .* True"),
        ({"text_config": {"projection_size": 21}}, "`projection_size` of text_config"),
    ],
    "maskrcnn_resnet50_fpn": [
        ({"num_classes": 1}, "`num_classes` .* at least 2: .* background.*=1"),
        ({"num_classes": 9}, r"cls_score.weight is \(8, 13\), expected \(9, 13\)"),
        ({"architecture": "maskrcnn_resnet50_fpn_v2"}, "`architecture` .* one of"),
        ({"model_args": {"depth": 3}}, "`model_args` .*=.*depth"),
        ({"model_args": {"image_size": 10**6}}, "`image_size` .* at most 4096"),
        ({"model_args": {"anchor_sizes": [8, -1]}}, "`anchor_sizes` .* positive numb"),
        ({"model_args": {"anchor_sizes": [8, 9]}}, "`anchor_sizes` must have one num"),
        ({"model_args": {"score_threshold": 2}}, "`score_threshold` .* from 0 to 1"),
        ({"model_args": {"bounding_box_format": ["xyxy"]}}, "`bounding_box_format`"),
        ({"model_args": {"aligned_masks": 1}}, "`aligned_masks` .* true or false"),
        (
            {"model_args": {"proposal_options": {"strides": [3]}}},
            "`proposal_options` in config.json may only have .*strides",
        ),
    ],
    "dall_e_dvae": [
        ({"n_blk_per_group": 3}, "lacks keys.*block_3"),
        ({"group_count": 3}, "keys that this model does not have.*group_4"),
        ({"n_hid": 8}, "weights must have the shapes.*n_hid=8"),
        ({"image_size": [20, 16]}, "`image_size` must be a multiple of `patch_size`"),
        ({"n_blk_per_group": 4096}, "`n_blk_per_group` in config.json must be at most"),
        ({"library": "dalle"}, "`library` in config.json must be one of .*dall_e"),
    ],
    "own_smp_unet": [
        ({"_model_class": "FPN"}, "`_model_class` .*'Unet'.*='FPN'"),
        ({"activation": "sigmoid"}, "`activation` .*='sigmoid'"),
        ({"output_stride": 16}, r"may only have .*\['output_stride'\]"),
    ],
    "own_resnet_basic": [
        ({"hidden_act": "gelu"}, "`hidden_act` .*='gelu'"),
        ({"hidden_sizes": [4, 7]}, r"`hidden_sizes` .*\[4, 8\]"),
    ],
    "own_resnet_bottleneck": [
        ({"downsample_in_bottleneck": True}, "`downsample_in_bottleneck` .*=True")
    ],
    "own_timm_convnext": [
        ({"model_args": {"patch_size": 2}}, "`patch_size` .* not be 2.*halves")
    ],
    "own_distilbert_masked_lm": [({"tie_word_embeddings": False}, "`tie_word_embed")],
    "smp_unet_resnet50": [
        ({"architecture": "FPN"}, "`architecture` in config.json must be 'Unet'"),
        # The library's default is "resnet34".
        ({"encoder_name": None}, "The files have more blocks"),
        ({"encoder_name": "vgg16"}, "`encoder_name` .* 'resnet18' or 'resnet34' or"),
        ({"encoder_depth": 4}, "`encoder_depth` in config.json must be 5"),
        ({"decoder_attention_type": "scse"}, "`decoder_attention_type` .* be None"),
        ({"activation": "sigmoid"}, "`activation` in config.json must be None or"),
        ({"classes": 10**6}, "`classes` in config.json must be at most"),
        ({"classes": 4}, r"segmentation_head.0.weight is \(5, 2, 3, 3\), expected"),
        ({"decoder_channels": [11, 7, 5]}, "`decoder_dims` must have one number"),
        ({"decoder_channels": [11, 7, 5, 3, 10**9]}, "`decoder_channels` .* at most"),
        ({"in_channels": 4}, r"encoder.conv1.weight is \(3, 3, 7, 7\), expected"),
        ({"model_args": {"num_blocks": [1, 2, 2, 2]}}, "lacks keys of this model"),
    ],
    "timm_vit": [
        ({"architecture": "resnet50"}, "`architecture` .* timm.*'resnet50'"),
        ({"architecture": "vit_base_patch16_224_miil"}, "`architecture` in config"),
        ({"global_pool": "map"}, "`global_pool` .*one of token, avg.*'map'"),
        ({"model_args": {"qk_norm": True}}, r"`model_args` .*\['qk_norm'\]"),
        ({"model_args": {"mlp_ratio": "big"}}, "`mlp_ratio` .*a number"),
        ({"model_args": {"fc_norm": True}}, "`fc_norm` .*avg.*fc_norm=True"),
        ({"model_args": {"num_classes": 3}}, "`num_classes` .*=5, in `model_args` 3"),
    ],
    "timm_convnext": [
        ({"architecture": "convnext_tiny_hnf"}, "`architecture` in conf"),
        ({"architecture": "convnextv2_tiny"}, "`architecture` in conf"),
        ({"model_args": {"conv_mlp": True}}, r"`model_args`.*conv_mlp'\]"),
        ({"model_args": [1]}, r"`model_args` .*\[1\]"),
        ({"global_pool": "max"}, "`global_pool` .*one of avg.*'max'"),
        ({"global_pool": ["avg"]}, r"`global_pool` .*\['avg'\]"),
        ({"pretrained_cfg": {"input_size": [3, 0, 7]}}, "`input_size`"),
        ({"pretrained_cfg": {"input_size": "big"}}, "`input_size`"),
        ({"model_args": {"depths": 3}}, "`depths` .* a list .*depths=3"),
    ],
    "timm_deit_distilled": [({"global_pool": "avg"}, "`global_pool` .*one of token")],
    "timm_deit": [({"model_args": {"qkv_bias": "no"}}, "`qkv_bias` .*true or false")],
    "timm_swin": [
        ({"model_args": {"num_heads": [0]}}, "`num_heads` .*positive"),
        ({"model_args": {"mlp_ratio": "big"}}, "`mlp_ratio` .*a number"),
        ({"model_args": {"window_size": [5, 4]}}, "`window_size` .*positive"),
        ({"architecture": "swin_s3_tiny_224"}, "`architecture` in config"),
        ({"global_pool": "token"}, "`global_pool` .*one of avg.*'token'"),
        ({"model_args": {"head_dim": 7}}, r"`model_args` .*\['head_dim'\]"),
        # Windows of 5 that shift and don't fill the map; that are clipped on one side.
        ({"model_args": {"img_size": 22}}, r"of the window.*\(11, 11\) in stage 0"),
        ({"model_args": {"img_size": [20, 30]}}, r"\(3, 4\) in stage 2"),
    ],
    "torchvision_resnet50": [
        ({"library": "keras"}, "`library` in config.json must be .*'keras'"),
        ({"library": ["torchvision"]}, "`library` in config.json must be"),
        ({"architecture": "resnet20"}, "`architecture` .* one of resnet18.*20"),
        ({"architecture": "resnet34"}, "has keys that this model does not"),
        ({"model_args": {"block": "wide"}}, "`block` in config.json must be on"),
        ({"architecture": 50}, "`architecture` .*torchvision.*=50"),
        ({"num_classes": 10**6}, "`num_classes` in config.json must be at m"),
        ({"num_classes": 4}, r"fc.weight is \(5, 96\), expected \(4, 96\)"),
        ({"model_args": []}, "`model_args` in config.json may only have"),
        ({"model_args": {"depth": 3}}, "`model_args` .*=.*depth"),
        ({"model_args": {"stem_dim": 10**6}}, "`stem_dim` .*at most"),
        ({"model_args": {"num_blocks": [10**6]}}, "`num_blocks` .*at most"),
        ({"model_args": {"num_blocks": [3] * 9}}, "`num_blocks` .*at most 8"),
        # The sizes of a name are those of its variant: these files have others.
        ({"architecture": "resnet50", "model_args": None}, "lacks keys of this model"),
    ],
    "torchvision_resnet18": [
        ({"architecture": "resnet50"}, "lacks keys of this model")
    ],
    "torchvision_fcn_resnet50": [
        ({"model_args": {"dilated_stages": [7]}}, "`dilated_stages` must be ind"),
        ({"aux_loss": "yes"}, "`aux_loss` in config.json must be true or false"),
    ],
    "torchvision_fcn_resnet50_plain": [
        ({"aux_loss": True}, "lacks keys .*aux_classifier")
    ],
    "torchvision_vgg16": [
        ({"model_args": {"num_convs": [1, 2]}}, "must have the same length"),
        ({"model_args": {"image_size": [10**6, 9]}}, "`image_size` .*at most 8192"),
        ({"num_classes": 0}, "`num_classes` in config.json must be a positive"),
    ],
    "vilbert_pretrainer": [
        ({"v_hidden_act": "relu"}, "`hidden_act` and `v_hidden_act` in config.json"),
        ({"v_hidden_dropout_prob": 0.2}, "`v_hidden_dropout_prob` .* must be the same"),
        ({"task_specific_tokens": True}, "`task_specific_tokens` .* must be False"),
        ({"v_biattention_id": 3}, "`v_biattention_id` .* must be a list of blocks"),
        ({"v_biattention_id": [0, True]}, "must be a list of blocks"),
        ({"v_biattention_id": [0] * 99}, "`v_biattention_id` .* at most 3 blocks"),
        ({"v_biattention_id": [1, 0]}, "`region_co_layers` must have blocks in"),
        ({"v_biattention_id": [-1, 0]}, "`region_co_layers` must be a non-negative"),
        ({"v_biattention_id": [0]}, "must have the same length"),
        ({"fusion_method": "cat"}, "`fusion_method` .* must be one of mul, sum"),
        ({"architectures": ["Other"]}, "`architectures` .* must name one of BertModel"),
        (
            {"architectures": ["VILBertForVLTasks"], "finetuning_task": "x"},
            "`finetuning_task` .* must be one of",
        ),
        ({"bi_num_attention_heads": 5}, "num_heads"),
    ],
    "vit_classifier": [
        ({"qkv_bias": "no"}, "`qkv_bias` in config.json .*true or .*'no'"),
        ({"qkv_bias": False}, "keys that this model does not have"),
        ({"image_size": [7, 7, 7]}, "`image_size` in config.json"),
        ({"patch_size": 6}, "multiple of `patch_size`"),
        ({"image_size": [14, 20]}, "multiple of `patch_size`"),
        ({"num_channels": 4}, "weights must have the shapes"),
    ],
    "swin_classifier": [
        ({"patch_size": 3}, r"weight is \(6, 3, 2, 2\), expected"),
        ({"depths": 2}, "`depths` in config.json must be a list"),
        ({"depths": [2]}, "one number per stage"),
        ({"use_absolute_embeddings": True}, "absolute_embeddings"),
        ({"window_size": 4}, "relative_position_bias_table is"),
    ],
    "vit_encoder": [
        # Positions are resized for an `image_size` of the call, not of a wrong file.
        ({"image_size": [56, 56]}, "weights must have the shapes"),
    ],
    "mae_half": [({"mask_ratio": 1.0}, "`mask_ratio` .*1.0")],
    "convnext_classifier": [({"hidden_sizes": [5, 8]}, "weights must have the shapes")],
    "xlm_classifier": [
        *named(is_encoder=False, causal=True, asm=True, use_lang_emb=False, n_langs=1),
        *named(summary_type="mean", summary_activation="tanh"),
    ],
    "xlnet_classifier": [
        *named(attn_type="uni", bi_data=True, untie_r=False, d_head=5, clamp_len=-3),
        *named(summary_type="mean", summary_use_proj=False, summary_activation="relu"),
        *named(ff_activation="celu"),
    ],
}
# Of these cases a dictionary is added to that of the case, and does not replace it.
ADDED = ("maskrcnn_resnet50_fpn", "timm_swin", "clip_largest_id", "siglip_plain")


ROWS = {
    f"{case}_{number}": (case, *row)
    for case, rows in REFUSED.items()
    for number, row in enumerate(rows)
}


@pytest.mark.parametrize("name", ROWS)
def test_unsupported_configs_are_refused(name, tmp_path):
    case, fields, message = ROWS[name]
    own = config_of(CHECKPOINTS / case)
    if case in ADDED:
        fields = {
            name: {**own[name], **value} if isinstance(value, dict) else value
            for name, value in fields.items()
        }
    check_refused(tmp_path, case, fields, message)
