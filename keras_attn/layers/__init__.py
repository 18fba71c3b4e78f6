"""Attention layers, one idea per file, on the pure functions of `keras_attn.ops`."""

from keras_attn.layers.adaptation.keras_layers import Conv2D, Dense, Embedding
from keras_attn.layers.attention.additive_attention import AdditiveAttention
from keras_attn.layers.attention.additive_attention_2d import AdditiveAttention2D
from keras_attn.layers.attention.attention_pooling import (
    AttentionPooling,
    ProbePooling,
)
from keras_attn.layers.attention.dot_product_attention import DotProductAttention
from keras_attn.layers.attention.glimpse_attention import GlimpseAttention
from keras_attn.layers.attention.mlp_dot_attention import MLPDotAttention
from keras_attn.layers.attention.multi_head_attention import MultiHeadAttention
from keras_attn.layers.attention.pad_cache import PadCache
from keras_attn.layers.attention.relative_attention import RelativeMultiHeadAttention
from keras_attn.layers.attention.scored_attention import ScoredAttention
from keras_attn.layers.attention.self_attention_2d import SelfAttention2D
from keras_attn.layers.attention.text_image_mask import TextImageMask
from keras_attn.layers.attention.window_attention import WindowAttention
from keras_attn.layers.attention.word_guided_attention import WordGuidedAttention
from keras_attn.layers.blocks.co_attention_block import CoAttentionBlock
from keras_attn.layers.blocks.feed_forward import FeedForward
from keras_attn.layers.blocks.layer_scale import LayerScale
from keras_attn.layers.blocks.stochastic_depth import StochasticDepth
from keras_attn.layers.blocks.swin_block import SwinBlock
from keras_attn.layers.blocks.transformer_block import (
    TransformerDecoderBlock,
    TransformerEncoderBlock,
)
from keras_attn.layers.blocks.xlnet_block import (
    SegmentMemory,
    TargetEmbedding,
    XLNetBlock,
)
from keras_attn.layers.convolution.column_mask import ColumnMask
from keras_attn.layers.convolution.feature_pyramid import FeaturePyramid
from keras_attn.layers.convolution.match_size import CropLike, ResizeLike
from keras_attn.layers.convolution.max_unpooling import MaxPoolWithIndices, MaxUnpool2D
from keras_attn.layers.convolution.minimum_image_size import MinimumImageSize
from keras_attn.layers.convolution.standardized_conv import StandardizedConv2D
from keras_attn.layers.convolution.transposed_conv import TransposedConv2D
from keras_attn.layers.convolution.upsample_like import UpsampleLike
from keras_attn.layers.detection.region_proposal import RegionProposal
from keras_attn.layers.detection.roi_pooling import ROIAlign, ROIPool
from keras_attn.layers.detection.select_detections import SelectDetections
from keras_attn.layers.detection.select_masks import SelectMasks
from keras_attn.layers.dropout import Dropout
from keras_attn.layers.embeddings.caption_embedding import (
    CaptionEmbedding,
    ImageCodeEmbedding,
)
from keras_attn.layers.embeddings.code_projection import CodeProjection
from keras_attn.layers.embeddings.global_region import GlobalRegion
from keras_attn.layers.embeddings.gumbel_softmax import GumbelSoftmax
from keras_attn.layers.embeddings.image_preprocessing import ImagePreprocessing
from keras_attn.layers.embeddings.log_mel_spectrogram import LogMelSpectrogram
from keras_attn.layers.embeddings.patch_embedding import ClassToken, PatchEmbedding
from keras_attn.layers.embeddings.patch_merging import PatchMerging
from keras_attn.layers.embeddings.position_embedding import (
    LearnedPositionEmbedding,
    SinusoidalPositionEmbedding,
)
from keras_attn.layers.embeddings.position_weighted_sum import PositionWeightedSum
from keras_attn.layers.embeddings.random_patch_masking import (
    HiddenPatches,
    PatchUnmasking,
    RandomPatchMasking,
)
from keras_attn.layers.embeddings.relative_position_encoding import (
    RelativePositionEncoding,
)
from keras_attn.layers.embeddings.similarity import SimilarityLogits
from keras_attn.layers.embeddings.token_embedding import OutputBias, TokenEmbedding
from keras_attn.layers.embeddings.token_pooling import EndTokenPooling, TokenPooling
from keras_attn.layers.normalization.batch_normalization import BatchNormalization
from keras_attn.layers.normalization.conditional_batch_normalization import (
    ConditionalBatchNormalization,
)
from keras_attn.layers.normalization.layer_normalization import LayerNormalization
from keras_attn.layers.normalization.spectral_normalization import SpectralNormalization
from keras_attn.layers.projection import Projection
from keras_attn.layers.recurrent.attention_objective import AttentionObjective
from keras_attn.layers.recurrent.attention_rnn import AttentionRNN
from keras_attn.layers.recurrent.attention_speller import AttentionSpeller
from keras_attn.layers.recurrent.frame_attention_rnn import FrameAttentionRNN
from keras_attn.layers.recurrent.hard_attention_rnn import HardAttentionRNN
from keras_attn.layers.recurrent.maxout import Maxout
from keras_attn.layers.recurrent.per_frame import PerFrame
from keras_attn.layers.recurrent.pyramidal_blstm import PyramidalBLSTM
from keras_attn.layers.rematerialization import install as _fix_remat_scope

_fix_remat_scope()

__all__ = [
    "AdditiveAttention",
    "AdditiveAttention2D",
    "AttentionObjective",
    "AttentionPooling",
    "AttentionRNN",
    "AttentionSpeller",
    "BatchNormalization",
    "CaptionEmbedding",
    "ClassToken",
    "CoAttentionBlock",
    "CodeProjection",
    "ColumnMask",
    "ConditionalBatchNormalization",
    "Conv2D",
    "CropLike",
    "Dense",
    "DotProductAttention",
    "Dropout",
    "Embedding",
    "EndTokenPooling",
    "FeaturePyramid",
    "FeedForward",
    "FrameAttentionRNN",
    "GlimpseAttention",
    "GlobalRegion",
    "GumbelSoftmax",
    "HardAttentionRNN",
    "HiddenPatches",
    "ImageCodeEmbedding",
    "ImagePreprocessing",
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
    "ProbePooling",
    "Projection",
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
    "SimilarityLogits",
    "SinusoidalPositionEmbedding",
    "SpectralNormalization",
    "StandardizedConv2D",
    "StochasticDepth",
    "SwinBlock",
    "TargetEmbedding",
    "TextImageMask",
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


def __dir__():
    return __all__
