"""Options as keywords, for type checkers and editors: see tools/write_keywords.py."""

import os
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import TypedDict

from normlens.corpus.measures import Measure
from normlens.explain.explainer import Positions, Targets, Tokens
from normlens.inputs.signals import Features
from normlens.inputs.text import Ids, Side
from normlens.lens import Direction
from normlens.pipeline.batches import Progress

class AnalysisKeywords(TypedDict, total=False):
    input_ids: Ids | None
    attention_mask: Ids | None
    token_type_ids: Ids | None
    decoder_input_ids: Ids | None
    decoder_attention_mask: Ids | None
    input_features: Features | None
    sampling_rate: int | None
    truncate: bool
    scopes: str | Iterable[str] | None
    layers: int | Iterable[int] | None
    heads: bool
    statistics: bool
    nonlinearity: str
    samples: int
    seed: int
    batch_size: int | str
    memory_limit: int | float | str | None
    precision: str
    map_dtype: str
    origin: str

class TextKeywords(TypedDict, total=False):
    sampling_rate: int | None
    truncate: bool
    out: str | PathLike[str] | None
    overwrite: bool
    progress: Progress | bool | None
    scopes: str | Iterable[str] | None
    layers: int | Iterable[int] | None
    heads: bool
    statistics: bool
    nonlinearity: str
    samples: int
    seed: int
    batch_size: int | str
    memory_limit: int | float | str | None
    precision: str
    map_dtype: str
    origin: str

class IdKeywords(TypedDict, total=False):
    target: Side | None
    attention_mask: Ids | None
    token_type_ids: Ids | None
    decoder_input_ids: Ids | None
    decoder_attention_mask: Ids | None
    out: str | PathLike[str] | None
    overwrite: bool
    progress: Progress | bool | None
    scopes: str | Iterable[str] | None
    layers: int | Iterable[int] | None
    heads: bool
    statistics: bool
    nonlinearity: str
    samples: int
    seed: int
    batch_size: int | str
    memory_limit: int | float | str | None
    precision: str
    map_dtype: str
    origin: str

class NoTextKeywords(TypedDict, total=False):
    target: Side | None
    input_ids: Ids | None
    attention_mask: Ids | None
    token_type_ids: Ids | None
    decoder_input_ids: Ids | None
    decoder_attention_mask: Ids | None
    input_features: Features | None
    out: str | PathLike[str] | None
    overwrite: bool
    progress: Progress | bool | None
    scopes: str | Iterable[str] | None
    layers: int | Iterable[int] | None
    heads: bool
    statistics: bool
    nonlinearity: str
    samples: int
    seed: int
    batch_size: int | str
    memory_limit: int | float | str | None
    precision: str
    map_dtype: str
    origin: str

class ExplainKeywords(TypedDict, total=False):
    input_ids: Ids | None
    attention_mask: Ids | None
    token_type_ids: Ids | None
    decoder_input_ids: Ids | None
    decoder_attention_mask: Ids | None
    input_features: Features | None
    sampling_rate: int | None
    truncate: bool
    nonlinearity: str
    flow: bool | int | None
    heads: bool
    scopes: str | Iterable[str] | None
    first_piece: bool
    batch_size: int | str
    memory_limit: int | float | str | None

class QuestionKeywords(TypedDict, total=False):
    layer: int | None
    score: str | None
    by: str | None
    generate: int | None
    generation: Mapping[str, object] | None
    sampling_rate: int | None
    truncate: bool
    progress: Progress | bool | None
    nonlinearity: str
    flow: bool | int | None
    heads: bool
    scopes: str | Iterable[str] | None
    first_piece: bool
    batch_size: int | str
    memory_limit: int | float | str | None

class AnyQuestionKeywords(TypedDict, total=False):
    target: Targets | Side
    contrast: Targets
    token: Tokens
    position: Positions
    direction: Direction | None
    layer: int | None
    score: str | None
    by: str | None
    generate: int | None
    generation: Mapping[str, object] | None
    input_ids: Ids | None
    attention_mask: Ids | None
    token_type_ids: Ids | None
    decoder_input_ids: Ids | None
    decoder_attention_mask: Ids | None
    input_features: Features | None
    sampling_rate: int | None
    truncate: bool
    progress: Progress | bool | None
    nonlinearity: str
    flow: bool | int | None
    heads: bool
    scopes: str | Iterable[str] | None
    first_piece: bool
    batch_size: int | str
    memory_limit: int | float | str | None

class CiteKeywords(TypedDict, total=False):
    by: str | None
    parts: str
    ablations: int
    seed: int
    generate: int
    generation: Mapping[str, object] | None
    score: str
    prompt: str
    system: str | None
    separator: str | None
    nonlinearity: str
    batch_size: int | str
    memory_limit: int | float | str | None

class CosineKeywords(TypedDict, total=False):
    nonlinearity: str
    batch_size: int | str
    memory_limit: int | float | str | None

class PairKeywords(TypedDict, total=False):
    truncate: bool
    progress: Progress | bool | None
    nonlinearity: str
    batch_size: int | str
    memory_limit: int | float | str | None

class ScoreKeywords(TypedDict, total=False):
    nonlinearity: str
    batch_size: int | str
    memory_limit: int | float | str | None
    similarity: str | None
    truncate_dim: int | None
    query_prompt: str | None
    document_prompt: str | None
    label: str | int | None
    template: str | None
    yes: str
    no: str

class EncodeKeywords(TypedDict, total=False):
    input_ids: Ids | None
    attention_mask: Ids | None
    token_type_ids: Ids | None
    sampling_rate: int | None
    truncate: bool

class EncodePairsKeywords(TypedDict, total=False):
    input_ids: Ids | None
    attention_mask: Ids | None
    decoder_input_ids: Ids | None
    decoder_attention_mask: Ids | None
    input_features: Features | None
    truncate: bool

class ExecutionKeywords(TypedDict, total=False):
    device: str
    dtype: str
    engine: str
    workers: int | str
    attempts: int
    sequence_timeout: float | None
    batch_size: int | str
    heartbeat: str | None
    address: str | None
    resources: str | None
    trust_remote_code: bool
    verify: bool
    file_size: float
    file_minutes: float

class RunKeywords(TypedDict, total=False):
    measures: str | Sequence[str | Measure] | None
    settings: Mapping[str, Mapping[str, object]] | None
    mask: float | None
    limit: int | None
    max_length: int | None
    truncate: bool
    seed: int
    column: str | None
    pair_column: str | None
    paragraphs: bool
    extra_columns: str | Sequence[str]
    revision: str | None
    precision: str
    block_size: int
    device: str
    dtype: str
    engine: str
    workers: int | str
    attempts: int
    sequence_timeout: float | None
    batch_size: int | str
    heartbeat: str | None
    address: str | None
    resources: str | None
    trust_remote_code: bool
    verify: bool
    file_size: float
    file_minutes: float

class EvaluateKeywords(TypedDict, total=False):
    methods: str | Sequence[str] | None
    protocols: str | Sequence[str] | None
    label_column: str | None
    good_column: str | None
    bad_column: str | None
    evidence_column: str | None
    steps: int
    limit: int | None
    max_length: int | None
    truncate: bool
    seed: int
    column: str | None
    pair_column: str | None
    paragraphs: bool
    revision: str | None
    block_size: int
    device: str
    dtype: str
    engine: str
    workers: int | str
    attempts: int
    sequence_timeout: float | None
    batch_size: int | str
    heartbeat: str | None
    address: str | None
    resources: str | None
    trust_remote_code: bool
    verify: bool
    file_size: float
    file_minutes: float

class AlignKeywords(TypedDict, total=False):
    scopes: str | Sequence[str]
    layers: int | Iterable[int] | None
    ways: str | Sequence[str]
    head: int | str | None
    gold: str | os.PathLike[str] | None
    gold_first: int | None
    limit: int | None
    max_length: int | None
    seed: int
    column: str | None
    pair_column: str | None
    paragraphs: bool
    revision: str | None
    block_size: int
    device: str
    dtype: str
    engine: str
    workers: int | str
    attempts: int
    sequence_timeout: float | None
    batch_size: int | str
    heartbeat: str | None
    address: str | None
    resources: str | None
    trust_remote_code: bool
    verify: bool
    file_size: float
    file_minutes: float

class AblateKeywords(TypedDict, total=False):
    components: str | Sequence[str] | None
    kinds: str | Sequence[str] | None
    layers: str
    loss: str
    label: str | None
    score: str | None
    reference: str | None
    reference_size: int
    draws: int
    seed: int
    resamples: int
    revision: str | None
    limit: int | None
    max_length: int
    column: str | None
    pair_column: str | None
    paragraphs: bool

class SettingsKeywords(TypedDict, total=False):
    revision: str | None
    column: str | None
    pair_column: str | None
    paragraphs: bool
    max_length: int
    mask: float
    seed: int
    resamples: int
    min_count: int
    top: int
    layer: int | None
    others: str
    relations: tuple[str, ...]
    ranks: str | None
    sentence: str | None
    methods: str | Sequence[str] | None
    label_column: str | None
    components: str | Sequence[str] | None
    ablation_kinds: str | Sequence[str] | None
