"""Tokenizers, tf.data pipelines and data sets."""

from keras_attn.data.answers import normalize_answer
from keras_attn.data.audio import Waveforms, pad_waveforms, read_wav, read_waveforms
from keras_attn.data.base_tokenizer import Tokenizer
from keras_attn.data.buildings import Building, Walk, WalkSimulator
from keras_attn.data.byte_level_bpe import ByteLevelBPETokenizer, StreamDecoder
from keras_attn.data.coco import read_coco
from keras_attn.data.dates import make_dates, split_dates
from keras_attn.data.detection import (
    DetectionData,
    DetectionExample,
    detection_dataset,
)
from keras_attn.data.elastic import ElasticDeformation, RandomQuarterTurns
from keras_attn.data.epochs import shuffled_dataset
from keras_attn.data.geometry import RandomColors, RandomMirror, RandomScaleAndCrop
from keras_attn.data.keras_cv_boxes import from_keras_cv, to_keras_cv
from keras_attn.data.load_text_tokenizer import load_text_tokenizer
from keras_attn.data.parallel import load_multi30k, parallel_dataset, read_parallel
from keras_attn.data.r2r import (
    WalkData,
    WalkExample,
    read_building,
    read_r2r,
    walk_dataset,
)
from keras_attn.data.rendered_words import RenderedWords, WordExample
from keras_attn.data.segmentation import (
    SegmentationData,
    read_segmentation,
    segmentation_dataset,
)
from keras_attn.data.sentencepiece import SentencePieceTokenizer
from keras_attn.data.shapes import Shapes, ShapesExample
from keras_attn.data.social_scene import SocialScene
from keras_attn.data.text_tokenizer import TextTokenizer
from keras_attn.data.tokenizers import (
    CharacterTokenizer,
    SubwordTokenizer,
    load_tokenizer,
)
from keras_attn.data.voc import read_voc
from keras_attn.data.vqa import VQAData, VQAExample, read_vqa
from keras_attn.data.vqa_dataset import vqa_dataset
from keras_attn.data.word_fonts import FONTS
from keras_attn.data.word_lists import hold_out, random_words
from keras_attn.data.wordpiece import WordPieceTokenizer

__all__ = [
    "FONTS",
    "Building",
    "ByteLevelBPETokenizer",
    "CharacterTokenizer",
    "DetectionData",
    "DetectionExample",
    "ElasticDeformation",
    "RandomColors",
    "RandomMirror",
    "RandomQuarterTurns",
    "RandomScaleAndCrop",
    "RenderedWords",
    "SegmentationData",
    "SentencePieceTokenizer",
    "Shapes",
    "SocialScene",
    "ShapesExample",
    "StreamDecoder",
    "SubwordTokenizer",
    "TextTokenizer",
    "Tokenizer",
    "VQAData",
    "VQAExample",
    "Walk",
    "WalkData",
    "WalkExample",
    "WalkSimulator",
    "Waveforms",
    "WordExample",
    "WordPieceTokenizer",
    "detection_dataset",
    "from_keras_cv",
    "hold_out",
    "load_multi30k",
    "load_text_tokenizer",
    "load_tokenizer",
    "make_dates",
    "normalize_answer",
    "pad_waveforms",
    "parallel_dataset",
    "random_words",
    "read_building",
    "read_coco",
    "read_parallel",
    "read_r2r",
    "read_segmentation",
    "read_voc",
    "read_vqa",
    "read_wav",
    "read_waveforms",
    "segmentation_dataset",
    "shuffled_dataset",
    "split_dates",
    "to_keras_cv",
    "vqa_dataset",
    "walk_dataset",
]
