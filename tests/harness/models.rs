//! The models that tests use.

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use spinfer_gguf::Header;
use spinfer_gguf::write::Writer;
use spinfer_llama::{Quantization, quantize};

/// The folder with `<id>/model.gguf` for each: `SPINFER_TEST_MODELS`, or `models` in the workspace.
pub fn folder() -> PathBuf {
    match std::env::var_os("SPINFER_TEST_MODELS") {
        Some(folder) => folder.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../models"),
    }
}

/// The weights of a model.
///
/// # Panics
/// When they aren't there.
pub fn weights(id: &str) -> PathBuf {
    let path = folder().join(id).join("model.gguf");
    assert!(
        path.is_file(),
        "{} isn't there: `cargo xtask test` fetches the models that tests use",
        path.display()
    );
    path
}

/// A header of a small llama model whose weights are missing, for damage that is to be found before
/// they are wanted.
pub fn header() -> Writer {
    let tokens: Vec<String> = (0..300).map(|index| format!("t{index}")).collect();
    Writer::new()
        .set("general.architecture", "llama")
        .set("llama.block_count", 1u32)
        .set("llama.context_length", 128u32)
        .set("llama.embedding_length", 32u32)
        .set("llama.feed_forward_length", 64u32)
        .set("llama.attention.head_count", 4u32)
        .set("llama.attention.head_count_kv", 4u32)
        .set("llama.attention.layer_norm_rms_epsilon", 1e-5f32)
        .set("tokenizer.ggml.model", "gpt2")
        .set("tokenizer.ggml.pre", "smollm")
        .set("tokenizer.ggml.tokens", tokens.clone())
        .set("tokenizer.ggml.token_type", vec![1i32; tokens.len()])
        .set("tokenizer.ggml.merges", vec!["t 1".to_owned()])
}

/// Writes a model's weights to `path`, with what `change` makes of its metadata.
///
/// # Panics
/// When the model isn't there, or can't be written.
pub fn rewritten(id: &str, path: &Path, change: impl FnOnce(Writer) -> Writer) {
    let source = weights(id);
    let header = Header::read(&source).expect("a header");
    let bytes = fs::read(&source).expect("weights");
    let metadata =
        header.metadata().fold(Writer::new(), |file, (key, value)| file.set(key, value.clone()));
    let file = header.tensors().iter().fold(change(metadata), |file, tensor| {
        let start = (header.data_offset() + tensor.offset) as usize;
        let data = bytes[start..start + tensor.bytes().expect("a size") as usize].to_vec();
        file.tensor(&tensor.name, &tensor.dimensions, tensor.kind, data)
    });
    fs::write(path, file.to_bytes()).expect("written");
}

impl FromStr for Weights {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|weights| weights.name() == name);
        found.ok_or_else(|| "there are q4_1, q4_0 and q8_0".to_owned())
    }
}

/// How the default model's weights are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weights {
    /// As the model comes.
    Q4_1,
    /// Made from that.
    Q4_0,
    /// Made from that.
    Q8_0,
    /// The same numbers as Q4_1's, each in single precision: for references.
    F32,
}

impl Weights {
    /// Those that are measured.
    pub const ALL: [Self; 3] = [Self::Q4_1, Self::Q4_0, Self::Q8_0];

    /// The usual name, by which it is parsed, too.
    pub fn name(self) -> &'static str {
        match self {
            Self::Q4_1 => "q4_1",
            Self::Q4_0 => "q4_0",
            Self::Q8_0 => "q8_0",
            Self::F32 => "f32",
        }
    }

    /// The file, `<folder>/smollm2-135m-instruct/model.gguf`. It is made where there is none.
    ///
    /// # Panics
    /// When it can't be made.
    pub fn file(self) -> PathBuf {
        let source = weights("smollm2-135m-instruct");
        let to = match self {
            Self::Q4_1 => return source,
            Self::Q4_0 => Quantization::Q4_0,
            Self::Q8_0 => Quantization::Q8_0,
            Self::F32 => Quantization::F32,
        };
        let folder = crate::server::target().join("bench-models").join(self.name());
        let folder = folder.join("smollm2-135m-instruct");
        let file = folder.join("model.gguf");
        if !file.is_file() {
            fs::create_dir_all(&folder).expect("a folder");
            let partial = folder.join("partial.gguf");
            quantize(&source, &partial, to).expect("the model can be quantized");
            fs::rename(&partial, &file).expect("a file of this folder's");
        }
        file
    }

    /// What a token of one sequence reads of the weights, in bytes: all of them, since the embeddings
    /// are the output's weights too.
    ///
    /// # Panics
    /// When the file can't be read.
    pub fn bytes_per_token(self) -> u64 {
        let header = Header::read(&self.file()).expect("a header");
        header.tensors().iter().map(|tensor| tensor.bytes().expect("a size")).sum()
    }
}
