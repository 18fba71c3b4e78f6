"""Tokenizers, tf.data pipelines and data sets."""

from keras_attn.data.audio.waveforms import (
    Waveforms,
    pad_waveforms,
    read_audio,
    read_wav,
    read_waveforms,
)
from keras_attn.data.images.answers import normalize_answer
from keras_attn.data.images.augmentation import augment_batches, three_augment_dataset
from keras_attn.data.images.captions import caption_dataset
from keras_attn.data.images.cifar10 import load_cifar10
from keras_attn.data.images.coco import read_coco
from keras_attn.data.images.detected_regions import detect_regions
from keras_attn.data.images.detection import (
    DetectionData,
    DetectionExample,
    detection_dataset,
)
from keras_attn.data.images.elastic import ElasticDeformation, RandomQuarterTurns
from keras_attn.data.images.geometry import (
    RandomColors,
    RandomMirror,
    RandomScaleAndCrop,
)
from keras_attn.data.images.image_bytes import decode_images
from keras_attn.data.images.image_classes import (
    ImageClassData,
    image_class_dataset,
    read_image_classes,
)
from keras_attn.data.images.image_texts import (
    ImageTextData,
    ImageTextExample,
    image_text_dataset,
    read_coco_captions,
    read_image_texts,
    read_named_pictures,
)
from keras_attn.data.images.keras_cv_boxes import from_keras_cv, to_keras_cv
from keras_attn.data.images.picture_index import (
    FoundPicture,
    PictureIndex,
    default_index_file,
    index_pictures,
)
from keras_attn.data.images.region_files import RegionData, read_regions, region_dataset
from keras_attn.data.images.segmentation import (
    SegmentationData,
    read_segmentation,
    segmentation_dataset,
)
from keras_attn.data.images.voc import read_voc
from keras_attn.data.images.vqa import VQAData, VQAExample, read_vqa, vqa_dataset
from keras_attn.data.images.yolo import read_yolo
from keras_attn.data.navigation.buildings import Building, Walk, WalkSimulator
from keras_attn.data.navigation.path_choices import (
    path_choice_dataset,
    path_pair_dataset,
)
from keras_attn.data.navigation.path_regions import (
    PathRegions,
    ViewpointRegions,
    view_regions,
    way_regions,
)
from keras_attn.data.navigation.r2r import (
    WalkData,
    WalkExample,
    read_building,
    read_r2r,
    walk_dataset,
)
from keras_attn.data.pipelines.box_checks import check_boxes
from keras_attn.data.pipelines.epochs import shuffled_dataset
from keras_attn.data.pipelines.label_checks import check_labels
from keras_attn.data.pipelines.records import record_dataset
from keras_attn.data.pipelines.splitting import split_batches, whole_batches
from keras_attn.data.synthetic.dates import make_dates, split_dates
from keras_attn.data.synthetic.picture_walks import (
    hang_pictures,
    instruction_words,
    picture_instructions,
)
from keras_attn.data.synthetic.rendered_words import RenderedWords, WordExample
from keras_attn.data.synthetic.shapes import Shapes, ShapesExample
from keras_attn.data.synthetic.social_scene import SocialScene
from keras_attn.data.synthetic.word_fonts import FONTS
from keras_attn.data.synthetic.word_lists import hold_out, random_words
from keras_attn.data.text.base_tokenizer import Tokenizer
from keras_attn.data.text.byte_level_bpe import ByteLevelBPETokenizer, StreamDecoder
from keras_attn.data.text.causal_lm import causal_lm_dataset, pack_documents
from keras_attn.data.text.clip_tokenizer import CLIPTokenizer
from keras_attn.data.text.completions import completion_dataset
from keras_attn.data.text.feedback_files import (
    CompletionTexts,
    PreferenceTexts,
    RankingTexts,
    read_completions,
    read_preferences,
    read_rankings,
)
from keras_attn.data.text.glue import GlueData, read_glue, read_sst2
from keras_attn.data.text.json_tokenizer import JSONTokenizer
from keras_attn.data.text.labeled_texts import LabeledTexts, read_labeled_texts
from keras_attn.data.text.load_text_tokenizer import load_text_tokenizer
from keras_attn.data.text.next_sentence import (
    next_sentence_dataset,
    next_sentence_pairs,
)
from keras_attn.data.text.parallel import load_multi30k, parallel_dataset, read_parallel
from keras_attn.data.text.preferences import preference_dataset, ranking_dataset
from keras_attn.data.text.prompts import prompt_dataset
from keras_attn.data.text.sentencepiece import SentencePieceTokenizer
from keras_attn.data.text.text_tokenizer import TextTokenizer
from keras_attn.data.text.tokenizers import (
    CharacterTokenizer,
    SubwordTokenizer,
    load_tokenizer,
)
from keras_attn.data.text.translation_lm import (
    language_probabilities,
    sample_languages,
    translation_lm_dataset,
)
from keras_attn.data.text.wordpiece import WordPieceTokenizer

__all__ = [
    "Building",
    "ByteLevelBPETokenizer",
    "CLIPTokenizer",
    "CharacterTokenizer",
    "CompletionTexts",
    "DetectionData",
    "DetectionExample",
    "ElasticDeformation",
    "FONTS",
    "FoundPicture",
    "GlueData",
    "ImageClassData",
    "ImageTextData",
    "ImageTextExample",
    "JSONTokenizer",
    "LabeledTexts",
    "PathRegions",
    "PictureIndex",
    "PreferenceTexts",
    "RandomColors",
    "RandomMirror",
    "RandomQuarterTurns",
    "RandomScaleAndCrop",
    "RankingTexts",
    "RegionData",
    "RenderedWords",
    "SegmentationData",
    "SentencePieceTokenizer",
    "Shapes",
    "ShapesExample",
    "SocialScene",
    "StreamDecoder",
    "SubwordTokenizer",
    "TextTokenizer",
    "Tokenizer",
    "VQAData",
    "VQAExample",
    "ViewpointRegions",
    "Walk",
    "WalkData",
    "WalkExample",
    "WalkSimulator",
    "Waveforms",
    "WordExample",
    "WordPieceTokenizer",
    "augment_batches",
    "caption_dataset",
    "causal_lm_dataset",
    "check_boxes",
    "check_labels",
    "completion_dataset",
    "decode_images",
    "default_index_file",
    "detect_regions",
    "detection_dataset",
    "from_keras_cv",
    "hang_pictures",
    "hold_out",
    "image_class_dataset",
    "image_text_dataset",
    "index_pictures",
    "instruction_words",
    "language_probabilities",
    "load_cifar10",
    "load_multi30k",
    "load_text_tokenizer",
    "load_tokenizer",
    "make_dates",
    "next_sentence_dataset",
    "next_sentence_pairs",
    "normalize_answer",
    "pack_documents",
    "pad_waveforms",
    "parallel_dataset",
    "path_choice_dataset",
    "path_pair_dataset",
    "picture_instructions",
    "preference_dataset",
    "prompt_dataset",
    "random_words",
    "ranking_dataset",
    "read_audio",
    "read_building",
    "read_coco",
    "read_coco_captions",
    "read_completions",
    "read_glue",
    "read_image_classes",
    "read_image_texts",
    "read_labeled_texts",
    "read_named_pictures",
    "read_parallel",
    "read_preferences",
    "read_r2r",
    "read_rankings",
    "read_regions",
    "read_segmentation",
    "read_sst2",
    "read_voc",
    "read_vqa",
    "read_wav",
    "read_waveforms",
    "read_yolo",
    "record_dataset",
    "region_dataset",
    "sample_languages",
    "segmentation_dataset",
    "shuffled_dataset",
    "split_batches",
    "split_dates",
    "three_augment_dataset",
    "to_keras_cv",
    "translation_lm_dataset",
    "view_regions",
    "vqa_dataset",
    "walk_dataset",
    "way_regions",
    "whole_batches",
]


def __dir__():
    return __all__
