//! `model.json`: what the component must know about a model, derived by the host.

use serde::{Deserialize, Serialize};

/// The engine behind a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// llama.cpp.
    Ggml,
    /// OpenVINO.
    Openvino,
}

/// The token ids that frame a fill-in-the-middle prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FimTokens {
    /// Before the text that precedes the gap.
    pub prefix: u32,
    /// Before the text that follows the gap.
    pub suffix: u32,
    /// Where the model starts to fill the gap.
    pub middle: u32,
}

/// The file `model.json` beside `tokenizer.json` in `/models/<id>/`.
///
/// Token ids are indices into the vocabulary, `0..vocab_size`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelCard {
    /// The id that requests name, that `/v1/models` lists and that `load-by-name` takes. May
    /// contain `/`.
    pub id: String,
    /// Other names for the same model.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// When the weights were made, in Unix seconds (their file's time).
    pub created: u64,
    /// The engine.
    pub backend: Backend,
    /// The inputs beyond `input_ids` that its `compute` takes, by their names in [`crate::tensor`].
    pub inputs: Vec<String>,
    /// Whether a row can be cut back by `position_ids` below its length.
    pub rewinds: bool,
    /// The longest sequence in tokens, prompt and completion together, as the host serves it.
    pub context: u32,
    /// The most rows that one execution context may hold.
    pub max_rows: u32,
    /// Tokens in the vocabulary: the last dimension of `logits`.
    pub vocab_size: u32,
    /// Beginning of sequence.
    pub bos: Option<u32>,
    /// End of sequence.
    pub eos: Option<u32>,
    /// Padding.
    #[serde(default)]
    pub pad: Option<u32>,
    /// Every token that ends a generation, ascending; `eos` is among them.
    pub end_of_generation: Vec<u32>,
    /// Whether text is to be preceded by `bos`.
    pub add_bos: bool,
    /// Whether text is to be followed by `eos`. Not done for completions; tokenizers tell it.
    #[serde(default)]
    pub add_eos: bool,
    /// Fill-in-the-middle, for models that were trained for it.
    #[serde(default)]
    pub fim: Option<FimTokens>,
    /// The chat template (Jinja), for clients that render chats themselves.
    #[serde(default)]
    pub chat_template: Option<String>,
}

impl ModelCard {
    /// Whether `compute` takes the optional input of that name.
    pub fn takes(&self, input: &str) -> bool {
        self.inputs.iter().any(|name| name == input)
    }
}
