"""Attention layers, one idea per file, on the pure functions of `keras_attn.ops`."""

from keras_attn.layers.additive_attention import AdditiveAttention
from keras_attn.layers.additive_attention_2d import AdditiveAttention2D
from keras_attn.layers.attention_objective import AttentionObjective
from keras_attn.layers.attention_rnn import AttentionRNN
from keras_attn.layers.attention_speller import AttentionSpeller
from keras_attn.layers.batch_normalization import BatchNormalization
from keras_attn.layers.column_mask import ColumnMask
from keras_attn.layers.conditional_batch_normalization import (
    ConditionalBatchNormalization,
)
from keras_attn.layers.dot_product_attention import DotProductAttention
from keras_attn.layers.dropout import Dropout
from keras_attn.layers.feature_pyramid import FeaturePyramid
from keras_attn.layers.feed_forward import FeedForward
from keras_attn.layers.frame_attention_rnn import FrameAttentionRNN
from keras_attn.layers.glimpse_attention import GlimpseAttention
from keras_attn.layers.layer_normalization import LayerNormalization
from keras_attn.layers.layer_scale import LayerScale
from keras_attn.layers.log_mel_spectrogram import LogMelSpectrogram
from keras_attn.layers.match_size import CropLike, ResizeLike
from keras_attn.layers.max_unpooling import MaxPoolWithIndices, MaxUnpool2D
from keras_attn.layers.maxout import Maxout
from keras_attn.layers.minimum_image_size import MinimumImageSize
from keras_attn.layers.mlp_dot_attention import MLPDotAttention
from keras_attn.layers.multi_head_attention import MultiHeadAttention
from keras_attn.layers.pad_cache import CacheRoom, PadCache
from keras_attn.layers.patch_embedding import ClassToken, PatchEmbedding
from keras_attn.layers.patch_merging import PatchMerging
from keras_attn.layers.per_frame import PerFrame
from keras_attn.layers.position_embedding import (
    LearnedPositionEmbedding,
    SinusoidalPositionEmbedding,
)
from keras_attn.layers.position_weighted_sum import PositionWeightedSum
from keras_attn.layers.pyramidal_blstm import PyramidalBLSTM
from keras_attn.layers.random_patch_masking import (
    HiddenPatches,
    PatchUnmasking,
    RandomPatchMasking,
)
from keras_attn.layers.region_proposal import RegionProposal
from keras_attn.layers.relative_attention import RelativeMultiHeadAttention
from keras_attn.layers.relative_position_encoding import RelativePositionEncoding
from keras_attn.layers.rematerialization import install as _fix_remat_scope
from keras_attn.layers.roi_pooling import ROIAlign, ROIPool
from keras_attn.layers.scored_attention import ScoredAttention
from keras_attn.layers.select_detections import SelectDetections
from keras_attn.layers.select_masks import SelectMasks
from keras_attn.layers.self_attention_2d import SelfAttention2D
from keras_attn.layers.spectral_normalization import SpectralNormalization
from keras_attn.layers.standardized_conv import StandardizedConv2D
from keras_attn.layers.stochastic_depth import StochasticDepth
from keras_attn.layers.swin_block import SwinBlock
from keras_attn.layers.token_embedding import OutputBias, TokenEmbedding
from keras_attn.layers.token_pooling import TokenPooling
from keras_attn.layers.transformer_block import (
    TransformerDecoderBlock,
    TransformerEncoderBlock,
)
from keras_attn.layers.transposed_conv import TransposedConv2D
from keras_attn.layers.upsample_like import UpsampleLike
from keras_attn.layers.window_attention import WindowAttention
from keras_attn.layers.word_guided_attention import WordGuidedAttention
from keras_attn.layers.xlnet_block import SegmentMemory, TargetEmbedding, XLNetBlock

_fix_remat_scope()

__all__ = [
    "AdditiveAttention",
    "AttentionObjective",
    "AdditiveAttention2D",
    "AttentionRNN",
    "AttentionSpeller",
    "BatchNormalization",
    "CacheRoom",
    "ClassToken",
    "ColumnMask",
    "ConditionalBatchNormalization",
    "CropLike",
    "DotProductAttention",
    "Dropout",
    "FeaturePyramid",
    "FeedForward",
    "FrameAttentionRNN",
    "GlimpseAttention",
    "HiddenPatches",
    "LayerNormalization",
    "LayerScale",
    "LearnedPositionEmbedding",
    "LogMelSpectrogram",
    "MLPDotAttention",
    "MaxPoolWithIndices",
    "MaxUnpool2D",
    "Maxout",
    "MinimumImageSize",
    "MultiHeadAttention",
    "OutputBias",
    "PadCache",
    "PatchEmbedding",
    "PatchMerging",
    "PatchUnmasking",
    "PerFrame",
    "PositionWeightedSum",
    "PyramidalBLSTM",
    "ROIAlign",
    "ROIPool",
    "RandomPatchMasking",
    "RegionProposal",
    "RelativeMultiHeadAttention",
    "RelativePositionEncoding",
    "ResizeLike",
    "ScoredAttention",
    "SegmentMemory",
    "SelectDetections",
    "SelectMasks",
    "SelfAttention2D",
    "SinusoidalPositionEmbedding",
    "SpectralNormalization",
    "StandardizedConv2D",
    "StochasticDepth",
    "SwinBlock",
    "TargetEmbedding",
    "TokenEmbedding",
    "TokenPooling",
    "TransformerDecoderBlock",
    "TransformerEncoderBlock",
    "TransposedConv2D",
    "UpsampleLike",
    "WindowAttention",
    "WordGuidedAttention",
    "XLNetBlock",
]
