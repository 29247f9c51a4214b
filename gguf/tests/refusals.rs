//! What is refused, and in which words: people who put a file there read them behind its name.

use spinfer_gguf::write::Writer;
use spinfer_gguf::{Header, HeaderError, ModelInfo, TensorType, Value, tokenizer};

fn parse(bytes: &[u8]) -> Result<Header, HeaderError> {
    Header::parse(bytes, bytes.len() as u64)
}

fn header_error(file: &Writer) -> String {
    parse(&file.to_bytes()).unwrap_err().to_string()
}

fn model() -> Writer {
    Writer::new()
        .set("general.architecture", "llama")
        .set("llama.context_length", 2048u32)
        .set("llama.block_count", 3u32)
        .set("llama.embedding_length", 64u32)
        .set("llama.attention.head_count", 4u32)
        .set("llama.attention.head_count_kv", 2u32)
        .set("llama.attention.layer_norm_rms_epsilon", 1e-5f32)
}

fn info(file: &Writer) -> Result<ModelInfo, String> {
    ModelInfo::from_header(&parse(&file.to_bytes()).unwrap()).map_err(|error| error.to_string())
}

fn refused(key: &str, value: impl Into<Value>) -> String {
    info(&model().set(key, value)).unwrap_err()
}

fn byte_tokens() -> Vec<String> {
    (0..=255u8).map(|byte| format!("<0x{byte:02X}>")).collect()
}

fn sentence_piece(tokens: Vec<String>) -> Writer {
    let scores: Vec<f32> = (0..tokens.len()).map(|id| -(id as f32)).collect();
    Writer::new()
        .set("tokenizer.ggml.model", "llama")
        .set("tokenizer.ggml.tokens", tokens)
        .set("tokenizer.ggml.scores", scores)
}

fn bpe(pre: &str) -> Writer {
    Writer::new()
        .set("tokenizer.ggml.model", "gpt2")
        .set("tokenizer.ggml.pre", pre)
        .set("tokenizer.ggml.tokens", vec!["a", "b", "ab"])
        .set("tokenizer.ggml.merges", vec!["a b"])
}

fn tokenizer_error(file: &Writer) -> String {
    tokenizer::derive(&parse(&file.to_bytes()).unwrap()).unwrap_err().to_string()
}

#[test]
fn other_files_and_versions() {
    assert_eq!(
        parse(b"PK\x03\x04 and more").unwrap_err().to_string(),
        "it is not a GGUF file: it begins with \"PK\\x03\\x04\" instead of \"GGUF\""
    );
    assert_eq!(
        parse(b"GG").unwrap_err().to_string(),
        "it is cut off: it ends after 2 bytes, inside its first bytes"
    );
    assert_eq!(
        header_error(&Writer::new().version(1)),
        "it has GGUF version 1, and only versions 2 and 3 can be read"
    );
    assert_eq!(
        header_error(&Writer::new().version(3u32.swap_bytes())),
        "it was made for a big-endian machine, and this is a little-endian one"
    );
    for version in [2, 3] {
        assert_eq!(parse(&Writer::new().version(version).to_bytes()).unwrap().version(), version);
    }
    assert!(Header::read("no/such/file".as_ref()).unwrap_err().to_string().starts_with("it can't"));
}

#[test]
fn impossible_metadata() {
    let twice = Writer::new().push("a.key", 1u32).push("a.key", 2u32);
    assert_eq!(header_error(&twice), "its header is damaged: the key \"a.key\" occurs twice");
    assert_eq!(
        header_error(&Writer::new().set("", 1u32)),
        "its header is damaged: metadata entry 1 has an empty key"
    );
    assert_eq!(
        header_error(&Writer::new().set("general.alignment", 48u32)),
        "its header is damaged: general.alignment is 48, not a power of two"
    );
    assert_eq!(
        header_error(&Writer::new().set("general.alignment", "x")),
        "its header is damaged: general.alignment should be u32 and is string"
    );
}

#[test]
fn impossible_tensors() {
    let zeros = |bytes| vec![0; bytes];
    let twice = Writer::new().tensor("t", &[8], TensorType::F32, zeros(32)).tensor(
        "t",
        &[8],
        TensorType::F32,
        zeros(32),
    );
    assert_eq!(header_error(&twice), "its header is damaged: tensor \"t\" occurs twice");
    let rows = Writer::new().tensor("t", &[33], TensorType::Q4_0, zeros(36));
    assert_eq!(
        header_error(&rows),
        "its header is damaged: tensor \"t\" has rows of 33, not a multiple of Q4_0's 32"
    );
    let huge = Writer::new().tensor("t", &[1 << 40, 1 << 40], TensorType::F32, zeros(32));
    assert_eq!(
        header_error(&huge),
        "its header is damaged: tensor \"t\" has the impossible shape [1099511627776, 1099511627776]"
    );
    let dimensions = Writer::new().tensor("t", &[1; 5], TensorType::F32, zeros(32));
    assert_eq!(
        header_error(&dimensions),
        "its header is damaged: tensor \"t\" has 5 dimensions, more than 4"
    );
    let name = "n".repeat(64);
    let name = Writer::new().tensor(&name, &[8], TensorType::F32, zeros(32));
    assert_eq!(
        header_error(&name),
        "its header is damaged: tensor entry 1 has a name of 64 bytes, more than 63"
    );
    let missing = Writer::new().tensor("t", &[1000], TensorType::F32, zeros(32));
    let size = missing.to_bytes().len();
    assert_eq!(
        header_error(&missing),
        format!("it is cut off: it should have at least {} bytes and has {size}", size - 32 + 4000)
    );
    // Nothing is known about the size of such a tensor.
    let unknown = Writer::new().tensor("t", &[1000], TensorType(999), zeros(32));
    parse(&unknown.to_bytes()).unwrap();
}

#[test]
fn a_good_model_is_not_refused() {
    let info = info(&model()).unwrap();
    assert_eq!(info.heads, [4, 4, 4]);
    assert_eq!(info.key_length, 16);
    assert_eq!(info.kv_bytes_per_token(), 3 * (16 * 2 + 16 * 2) * 2);
}

#[test]
fn kv_cache_of_uneven_models() {
    let uneven = model()
        .set("llama.attention.head_count", vec![4u32, 8, 8])
        .set("llama.attention.head_count_kv", vec![2i32, 0, 4])
        .set("llama.attention.key_length", 32u32)
        .set("llama.attention.value_length", 8u32);
    assert_eq!(info(&uneven).unwrap().kv_bytes_per_token(), (2 + 4) * (32 + 8) * 2);
    let windowed = uneven.set("llama.attention.key_length_swa", 64u32);
    assert_eq!(info(&windowed).unwrap().kv_bytes_per_token(), (2 + 4) * (64 + 8) * 2);
    let recurrent = Writer::new()
        .set("general.architecture", "mamba")
        .set("mamba.context_length", 2048u32)
        .set("mamba.block_count", 3u32)
        .set("mamba.embedding_length", 64u32)
        .set("mamba.attention.head_count", 0u32);
    assert_eq!(info(&recurrent).unwrap().kv_bytes_per_token(), 0);
}

#[test]
fn models_that_llama_cpp_would_abort_on() {
    let range = "its key llama.block_count is";
    assert_eq!(
        refused("llama.block_count", 0u32),
        format!("{range} 0, and should be from 1 to 512")
    );
    assert_eq!(
        refused("llama.block_count", 513u32),
        format!("{range} 513, and should be from 1 to 512")
    );
    for epsilon in [f32::NAN, f32::INFINITY, -1e-5, 0.0] {
        assert_eq!(
            refused("llama.attention.layer_norm_rms_epsilon", epsilon),
            format!(
                "its key llama.attention.layer_norm_rms_epsilon is {epsilon}, and should be a small \
                 positive number"
            )
        );
        refused("llama.attention.layer_norm_epsilon", epsilon);
    }
    assert_eq!(
        refused("llama.attention.head_count", 0u32),
        "its key llama.attention.head_count is 0, and should be at least 1"
    );
    assert_eq!(
        refused("llama.attention.head_count_kv", 3u32),
        "its key llama.attention.head_count_kv is 3, and should be a divisor of the 4 heads"
    );
    assert_eq!(
        refused("llama.attention.head_count", vec![4u32; 2]),
        "its key llama.attention.head_count has 2 entries for 3 layers"
    );
    assert_eq!(
        refused("llama.context_length", 0u32),
        "its key llama.context_length is 0, and should be at least 1"
    );
    assert_eq!(
        refused("llama.context_length", "many"),
        "its key llama.context_length should be an unsigned integer and is string"
    );
    assert_eq!(
        refused("llama.rope.scaling.type", "magic"),
        "its key llama.rope.scaling.type is \"magic\", and should be one of none, linear, yarn, \
         longrope"
    );
    assert_eq!(
        refused("llama.expert_used_count", 1u32),
        "its key llama.expert_used_count is 1, and should be from 0 to the 0 experts"
    );
    let experts = model().set("llama.expert_count", 8u32);
    assert_eq!(
        info(&experts).unwrap_err(),
        "its key llama.expert_used_count is 0, and should be from 1 to the 8 experts"
    );
    let experts = experts.set("llama.expert_used_count", 2u32);
    info(&experts).unwrap();
    assert_eq!(
        info(&experts.set("llama.expert_group_count", 3u32)).unwrap_err(),
        "its key llama.expert_group_count is 3, and should be a divisor of the 8 experts"
    );
    refused("llama.expert_count", 1025u32);
    refused("llama.nextn_predict_layers", 4u32);
}

#[test]
fn files_that_are_no_model_of_their_own() {
    assert_eq!(
        refused("split.count", 4u16),
        "it is one of 4 parts of a model; join them to one file first (llama-gguf-split --merge)"
    );
    assert_eq!(
        refused("general.type", "adapter"),
        "it holds an adapter (LoRA) instead of a language model"
    );
    assert_eq!(
        info(&model().unset("general.architecture")).unwrap_err(),
        "it lacks the key general.architecture"
    );
    assert_eq!(
        info(&model().unset("llama.block_count")).unwrap_err(),
        "it lacks the key llama.block_count"
    );
    assert_eq!(
        info(&model().unset("llama.attention.head_count")).unwrap_err(),
        "it lacks the key llama.attention.head_count"
    );
}

#[test]
fn tokenizers_that_cannot_be_derived() {
    assert_eq!(tokenizer_error(&Writer::new()), "it lacks the key tokenizer.ggml.model");
    assert_eq!(
        tokenizer_error(&Writer::new().set("tokenizer.ggml.model", "none")),
        "it has no vocabulary (tokenizer.ggml.model is \"none\")"
    );
    assert_eq!(
        tokenizer_error(&Writer::new().set("tokenizer.ggml.model", "abacus")),
        "its tokenizer.ggml.model is \"abacus\", a tokenizer that llama.cpp doesn't know"
    );
    let offer = "can't be converted; put the model's own tokenizer.json beside the weights, and it \
                 will be used";
    for model in ["bert", "t5", "rwkv", "plamo2"] {
        let file = bpe("").set("tokenizer.ggml.model", model);
        let sentence = format!("its tokenizer (tokenizer.ggml.model is {model:?}) {offer}");
        assert_eq!(tokenizer_error(&file), sentence);
        // The facts are there all the same.
        let facts = tokenizer::facts(&parse(&file.to_bytes()).unwrap()).unwrap();
        assert_eq!(facts.vocab_size, 3);
    }
    for (pre, is_unknown) in [("kimi-k2", false), ("abacus", true)] {
        let sentence = format!("its tokenizer (tokenizer.ggml.pre is {pre:?}) {offer}");
        assert_eq!(tokenizer_error(&bpe(pre)), sentence);
        let header = parse(&bpe(pre).to_bytes()).unwrap();
        assert_eq!(tokenizer::has_unknown_pre(&header), is_unknown);
        assert_eq!(tokenizer::facts(&header).unwrap().vocab_size, 3);
    }
    let merges = bpe("gpt-2").set("tokenizer.ggml.merges", vec!["a b", "ab a"]);
    assert_eq!(
        tokenizer_error(&merges),
        "its tokenizer can't be converted, for the merge \"ab a\" needs \"aba\", which is not a \
         token; put the model's own tokenizer.json beside the weights, and it will be used"
    );
}

#[test]
fn vocabularies_that_llama_cpp_would_abort_on() {
    let duplicate = |tokens: Vec<&str>| bpe("gpt-2").set("tokenizer.ggml.tokens", tokens);
    assert_eq!(
        tokenizer_error(&duplicate(vec!["a", "b", "a"])),
        "its tokens 0 and 2 have the same text, \"a\""
    );
    // llama.cpp takes a zero byte for the end.
    assert_eq!(
        tokenizer_error(&duplicate(vec!["a", "b", "a\0c"])),
        "its tokens 0 and 2 have the same text, \"a\""
    );
    let empty = duplicate(vec!["a", "b", "ab", "", "\0", "[EMPTY_5]"]);
    tokenizer::derive(&parse(&empty.to_bytes()).unwrap()).unwrap();
    assert_eq!(
        tokenizer_error(&empty.set("tokenizer.ggml.tokens", vec!["", "[EMPTY_0]"])),
        "its tokens 0 and 1 have the same text, \"[EMPTY_0]\""
    );
    let mut tokens = byte_tokens();
    tokenizer::derive(&parse(&sentence_piece(tokens.clone()).to_bytes()).unwrap()).unwrap();
    tokens.remove(0x80);
    assert_eq!(
        tokenizer_error(&sentence_piece(tokens)),
        "its vocabulary has no token for the byte 0x80"
    );
}

#[test]
fn vocabularies_that_do_not_add_up() {
    let types = bpe("gpt-2").set("tokenizer.ggml.token_type", vec![1i32; 2]);
    assert_eq!(
        tokenizer_error(&types),
        "its key tokenizer.ggml.token_type has 2 entries for 3 tokens"
    );
    let scores = sentence_piece(byte_tokens());
    assert_eq!(
        tokenizer_error(&scores.clone().set("tokenizer.ggml.scores", vec![1f32])),
        "its key tokenizer.ggml.scores has 1 entries for 256 tokens"
    );
    assert_eq!(
        tokenizer_error(&scores.clone().unset("tokenizer.ggml.scores")),
        "it lacks the key tokenizer.ggml.scores"
    );
    assert_eq!(
        tokenizer_error(&scores.set("tokenizer.ggml.scores", vec![f32::NAN; 256])),
        "its token 0 has a score that is not a number"
    );
    assert_eq!(
        tokenizer_error(&bpe("gpt-2").set("tokenizer.ggml.eos_token_id", 3u32)),
        "its key tokenizer.ggml.eos_token_id is 3, and there are 3 tokens"
    );
    assert_eq!(
        tokenizer_error(&bpe("gpt-2").unset("tokenizer.ggml.merges")),
        "it lacks the key tokenizer.ggml.merges"
    );
    assert_eq!(
        tokenizer_error(&bpe("gpt-2").set("tokenizer.ggml.tokens", "a")),
        "its key tokenizer.ggml.tokens should be an array of strings and is string"
    );
    assert_eq!(
        tokenizer_error(&bpe("gpt-2").set("tokenizer.ggml.tokens", vec!["a", &"b".repeat(5000)])),
        "its token 1 is 5000 bytes long, more than 4096"
    );
}
