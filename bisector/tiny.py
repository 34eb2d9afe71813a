"""Makes the model, tokenizer and data of suite `tiny`: the same bytes on every machine, offline.

Nothing here needs the training stack: weights come from Python's own generator and are written in
the safetensors layout, so that an environment's initialisation code cannot change what is compared.
"""

import hashlib
import json
import os
import random
import shutil
import struct
from array import array
from pathlib import Path

VOCAB_BYTES = 256
SPECIAL_TOKENS = ("<|pad|>", "<|im_start|>", "<|im_end|>", "<|eos|>")
HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS = 64, 128, 2, 4, 2

# Whole batches of 8 for `sft` and, after dropping, for `dpo`, so that their two-process members agree: a
# short last batch is filled up there. The other classes end on a short batch, so changes to it show.
ROWS = 208
MAX_LENGTH = 160  # tokens (bytes); must equal `max_length` in references/tiny.toml

# ChatML as TRL knows it, with the tags that assistant-only loss needs around what is trained on.
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' }}"
    "{%- if message['role'] == 'assistant' %}"
    "{% generation %}{{- message['content'] + '<|im_end|>' }}{% endgeneration %}{{- '\\n' }}"
    "{%- else %}{{- message['content'] + '<|im_end|>\\n' }}{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)

WORDS = (
    "amber basin cedar delta ember fjord grove harbor inlet juniper kettle lagoon meadow north "
    "orchard pebble quarry ridge saddle timber upland valley willow yarrow zenith naïve café 東京 ☂"
).split()
SYSTEM_TURNS = ("Answer in one line.", "You are terse.", "Speak like a ferryman, and never twice.")


def make_assets(state: Path) -> Path:
    """Return the directory with `model/` and one data directory a class; make it if it is missing.

    The directory's name holds a digest of its content, so a changed recipe never meets old files.
    """
    files = _render_assets()
    home = state / "hub" / f"tiny-{_digest(files)[:12]}"
    if not home.exists():
        partial = home.with_name(f"{home.name}.{os.getpid()}.partial")
        for name, content in files.items():
            (partial / name).parent.mkdir(parents=True, exist_ok=True)
            (partial / name).write_bytes(content)
        try:
            partial.rename(home)
        except OSError:  # another process was first
            shutil.rmtree(partial)
    return home


def assets_digest() -> str:
    """Return the SHA-256 (hex) over names and bytes of everything the suite trains on."""
    return _digest(_render_assets())


def _digest(files: dict[str, bytes]) -> str:
    total = hashlib.sha256()
    for name in sorted(files):
        total.update(f"{name}\0{len(files[name])}\0".encode() + files[name])
    return total.hexdigest()


def _render_assets() -> dict[str, bytes]:
    conversations = [_conversation(random.Random(f"sft {row}")) for row in range(ROWS)]
    preferences = [_preference(random.Random(f"dpo {row}")) for row in range(ROWS)]
    data: dict[str, list[dict[str, object]]] = {
        "sft": [{"messages": turns} for turns in conversations],
        "pc": [{"prompt": turns[:-1], "completion": turns[-1:]} for turns in conversations],
        "text": [{"text": "\n".join(turn["content"] for turn in turns)} for turns in conversations],
        "dpo": preferences,
    }
    files = {
        f"{name}/train.jsonl": "".join(json.dumps(row) + "\n" for row in rows).encode()
        for name, rows in data.items()
    }
    files["model/config.json"] = _json(_model_config())
    files["model/generation_config.json"] = _json({"eos_token_id": _token("<|im_end|>")})
    files["model/tokenizer.json"] = _json(_tokenizer())
    files["model/tokenizer_config.json"] = _json(_tokenizer_config())
    files["model/model.safetensors"] = _weights()
    return files


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()


# Data. Every kind of row below has moved a trajectory somewhere in TRL's history when the code that
# handles it changed: truncation of long answers, of long prompts, several turns, a system turn, masks
# of one-word answers, padding of uneven lengths.


def _conversation(rng: random.Random) -> list[dict[str, str]]:
    turns = _opening(rng)
    for _ in range(rng.choice((0, 0, 1, 2))):
        turns += [_turn("assistant", _sentence(rng, 1, 2)), _turn("user", _sentence(rng, 1, 2))]
    return [*turns, _turn("assistant", _answer(rng))]


def _preference(rng: random.Random) -> dict[str, object]:
    turns = _opening(rng)
    chosen, rejected = _answer(rng), _answer(rng)
    while rejected == chosen:
        rejected = _answer(rng)
    return {
        "chosen": [*turns, _turn("assistant", chosen)],
        "rejected": [*turns, _turn("assistant", rejected)],
    }


def _opening(rng: random.Random) -> list[dict[str, str]]:
    system = [_turn("system", rng.choice(SYSTEM_TURNS))] if rng.random() < 0.25 else []
    if rng.random() < 0.06:  # the prompt alone is over the limit: no completion is left
        question = _sentence(rng, 40, 60)
    elif rng.random() < 0.1:  # the prompt ends just before the limit: a stub of the answer is left
        question = _sentence(rng, 60, 60).encode()[: MAX_LENGTH - 48].decode(errors="ignore")
    else:
        question = _sentence(rng, 1, 9)
    return [*system, _turn("user", question)]


def _answer(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.2:
        return rng.choice(WORDS)
    if kind < 0.35:  # over the limit by itself
        return _sentence(rng, 30, 50)
    if kind < 0.45:
        return "\n".join(f"- {_sentence(rng, 1, 4)}" for _ in range(3)) + "\n"
    return _sentence(rng, 2, 14)


def _sentence(rng: random.Random, least: int, most: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(least, most)))


def _turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


# Model and tokenizer. Llama is a model type for which no transformers release replaces the tokenizer
# class that the files name.


def _model_config() -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB_BYTES + len(SPECIAL_TOKENS),
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": None,
        "eos_token_id": _token("<|im_end|>"),
        "pad_token_id": _token("<|pad|>"),
    }


def _token(special: str) -> int:
    return VOCAB_BYTES + SPECIAL_TOKENS.index(special)


def _tokenizer() -> dict[str, object]:
    """Byte-level BPE without merges: a token a byte, so lengths are plain to see."""
    vocabulary = {symbol: byte for byte, symbol in enumerate(_byte_symbols())}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": _token(special),
                "content": special,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for special in SPECIAL_TOKENS
        ],
        "normalizer": None,
        "pre_tokenizer": {**byte_level, "use_regex": False},
        "post_processor": None,
        "decoder": {**byte_level, "use_regex": False},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": [],
        },
    }


def _byte_symbols() -> list[str]:
    """Return the printable symbol of each byte, in byte order, as GPT-2's byte-level BPE defines them."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    shifted = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(shifted)) for byte in range(256)]


def _tokenizer_config() -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|pad|>",
        "model_max_length": 1024,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }


def _weights() -> bytes:
    """Return a safetensors file: header length (u64), JSON header, then float32 data, little endian."""
    rng = random.Random("tiny weights")
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    body = bytearray()
    for name, shape in _weight_shapes().items():
        count = shape[0] * (shape[1] if len(shape) == 2 else 1)
        ones = name.endswith("norm.weight")
        values = array("f", (1.0 if ones else rng.gauss(0.0, 0.05) for _ in range(count)))
        start = len(body)
        body += values.tobytes()
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, len(body)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(body)


def _weight_shapes() -> dict[str, list[int]]:
    vocabulary, kv = VOCAB_BYTES + len(SPECIAL_TOKENS), HIDDEN // HEADS * KV_HEADS
    shapes = {"model.embed_tokens.weight": [vocabulary, HIDDEN]}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        shapes |= {
            f"{at}.self_attn.q_proj.weight": [HIDDEN, HIDDEN],
            f"{at}.self_attn.k_proj.weight": [kv, HIDDEN],
            f"{at}.self_attn.v_proj.weight": [kv, HIDDEN],
            f"{at}.self_attn.o_proj.weight": [HIDDEN, HIDDEN],
            f"{at}.mlp.gate_proj.weight": [INTERMEDIATE, HIDDEN],
            f"{at}.mlp.up_proj.weight": [INTERMEDIATE, HIDDEN],
            f"{at}.mlp.down_proj.weight": [HIDDEN, INTERMEDIATE],
            f"{at}.input_layernorm.weight": [HIDDEN],
            f"{at}.post_attention_layernorm.weight": [HIDDEN],
        }
    return {**shapes, "model.norm.weight": [HIDDEN], "lm_head.weight": [vocabulary, HIDDEN]}
