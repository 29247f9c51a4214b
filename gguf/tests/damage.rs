//! Damaged files are refused with an error: no panic, and no memory beyond what the file could need.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use spinfer_gguf::write::Writer;
use spinfer_gguf::{Header, HeaderError, ModelInfo, TensorType, tokenizer};

/// Remembers the largest piece of memory that was asked for at once.
struct Watched;

static LARGEST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is the system allocator's doing.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watched = Watched;

/// Far more than the small files here need, far less than a damaged length asks for.
const LIMIT: usize = 8 << 20;

fn small_model(model: &str) -> Writer {
    let bytes = (0..=255u8).map(|byte| format!("<0x{byte:02X}>"));
    let letters = (0..=255u8).map(|byte| char::from_u32(0x100 + u32::from(byte)).unwrap());
    let tokens: Vec<String> = ["<unk>", "<s>", "</s>", "a", "b", "ab", "é"]
        .map(String::from)
        .into_iter()
        .chain(bytes)
        .chain(letters.map(String::from))
        .collect();
    let count = tokens.len();
    Writer::new()
        .set("general.architecture", "llama")
        .set("general.name", "small")
        .set("general.alignment", 32u32)
        .set("llama.context_length", 128u32)
        .set("llama.block_count", 2u32)
        .set("llama.embedding_length", 64u32)
        .set("llama.attention.head_count", vec![4u32, 4])
        .set("llama.attention.head_count_kv", 2u32)
        .set("llama.attention.layer_norm_rms_epsilon", 1e-5f32)
        .set("some.u8", 1u8)
        .set("some.i8", -1i8)
        .set("some.u16", 2u16)
        .set("some.i16", -2i16)
        .set("some.i32", -3i32)
        .set("some.u64", 4u64)
        .set("some.i64", -4i64)
        .set("some.f64", 0.5f64)
        .set("some.bool", true)
        .set("some.bools", vec![true, false])
        .set("some.floats", vec![0.5f64, 1.5])
        .set("tokenizer.ggml.model", model)
        .set("tokenizer.ggml.pre", "llama-bpe")
        .set("tokenizer.ggml.tokens", tokens)
        .set("tokenizer.ggml.scores", (0..count).map(|id| -(id as f32)).collect::<Vec<f32>>())
        .set("tokenizer.ggml.token_type", vec![1i32; count])
        .set("tokenizer.ggml.merges", vec!["a b"])
        .set("tokenizer.ggml.bos_token_id", 1u32)
        .set("tokenizer.chat_template", "{{ messages }}")
        .tensor("token_embd.weight", &[64, 4], TensorType::F16, vec![1; 512])
        .tensor("blk.0.attn_q.weight", &[64, 2], TensorType::Q4_0, vec![2; 72])
        .tensor("output_norm.weight", &[64], TensorType::F32, vec![3; 256])
}

/// Everything that a host does with a file. Whether it succeeds is not asked.
fn use_all(bytes: &[u8], claimed_size: u64) {
    let Ok(header) = Header::parse(bytes, claimed_size) else { return };
    for result in [
        ModelInfo::from_header(&header)
            .map(|info| info.kv_bytes_per_token().to_string())
            .map_err(|e| e.to_string()),
        tokenizer::facts(&header)
            .map(|facts| facts.vocab_size.to_string())
            .map_err(|e| e.to_string()),
        tokenizer::derive(&header).map(|derived| derived.tokenizer_json).map_err(|e| e.to_string()),
    ] {
        let text = result.unwrap_or_else(|sentence| sentence);
        assert!(!text.is_empty());
    }
}

fn files() -> [Vec<u8>; 2] {
    ["llama", "gpt2"].map(|model| {
        let bytes = small_model(model).to_bytes();
        let header = Header::parse(bytes.as_slice(), bytes.len() as u64).unwrap();
        ModelInfo::from_header(&header).unwrap();
        tokenizer::derive(&header).unwrap();
        bytes
    })
}

fn assert_little_memory() {
    let largest = LARGEST.load(Ordering::Relaxed);
    assert!(largest < LIMIT, "{largest} bytes were asked for at once");
}

#[test]
fn files_cut_off_anywhere_are_refused() {
    for file in files() {
        // The last tensor's data ends at the end of the file.
        for length in 0..file.len() {
            let error = Header::parse(&file[..length], length as u64).unwrap_err();
            use HeaderError::*;
            assert!(
                matches!(error, CutOff { .. } | MissingData { .. } | Claim { .. }),
                "{length}: {error}"
            );
        }
    }
    assert_little_memory();
}

#[test]
fn files_shorter_than_their_size_are_refused() {
    for file in files() {
        for length in (0..file.len()).step_by(7) {
            let _ = Header::parse(&file[..length], 1 << 40);
        }
        use_all(&file, 1 << 40);
    }
    assert_little_memory();
}

#[test]
fn flipped_bits_never_panic() {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = |limit: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 20) as usize % limit
    };
    for file in files() {
        for _ in 0..6000 {
            let mut damaged = file.clone();
            for _ in 0..1 + random(3) {
                let at = random(damaged.len());
                damaged[at] = match random(3) {
                    0 => damaged[at] ^ (1 << random(8)),
                    1 => 0xff,
                    _ => random(256) as u8,
                };
            }
            use_all(&damaged, damaged.len() as u64);
        }
    }
    assert_little_memory();
}

#[test]
fn every_bit_of_the_metadata_may_flip() {
    for file in files() {
        // Past this there is the vocabulary, which the random ones reach.
        for bit in 0..8 * 1000 {
            let mut damaged = file.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            use_all(&damaged, damaged.len() as u64);
        }
    }
    assert_little_memory();
}

#[test]
fn lying_counts_are_refused_before_memory_is_set_aside() {
    let file = &files()[0];
    for lie in [u64::MAX, u64::MAX / 2, 1 << 40, 1 << 32, 1 << 24] {
        // Tensors, entries, and the length of the first key.
        for at in [8, 16, 24] {
            let mut damaged = file.clone();
            damaged[at..at + 8].copy_from_slice(&lie.to_le_bytes());
            // A file that is large, but full of zeros, is no excuse.
            damaged.resize(1 << 20, 0);
            let error = Header::parse(damaged.as_slice(), damaged.len() as u64).unwrap_err();
            assert!(matches!(error, HeaderError::Claim { .. }), "{at}: {error}");
        }
    }
    assert_little_memory();
}
