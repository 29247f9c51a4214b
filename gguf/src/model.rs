//! What the metadata says about the model, checked for what would make llama.cpp abort.
//!
//! A [`ModelInfo`] exists only for a header that passed: llama.cpp asserts these things instead of
//! reporting them, and an assertion ends the process.

use crate::header::{Header, WrongType};
use crate::value::Value;

/// llama.cpp keeps its per-layer settings in arrays of this length.
const MOST_LAYERS: u64 = 512;
/// The same for experts.
const MOST_EXPERTS: u64 = 1024;
/// The scaling methods that llama.cpp knows; it asserts that the file names one of them.
const ROPE_SCALINGS: [&str; 4] = ["none", "linear", "yarn", "longrope"];
/// Architectures without attention: no heads, and no memory that grows with the sequence.
const RECURRENT: [&str; 6] = ["mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"];

/// The model's shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelInfo {
    /// The name of the architecture (`llama`, `gemma3`), which also begins its metadata keys.
    pub architecture: String,
    /// What its makers call it.
    pub name: Option<String>,
    /// The longest sequence that it was trained on, in tokens.
    pub context_length: u32,
    /// Layers.
    pub block_count: u32,
    /// Length of a token's vector.
    pub embedding_length: u32,
    /// Attention heads of each layer.
    pub heads: Vec<u32>,
    /// Heads of each layer that have keys and values of their own.
    pub kv_heads: Vec<u32>,
    /// Length of one head's key.
    pub key_length: u32,
    /// Length of one head's value.
    pub value_length: u32,
    /// The number of the file's quantization (`general.file_type`).
    pub file_type: Option<u32>,
}

/// Why llama.cpp could not run the model. Each is a sentence without the file's name.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ModelError {
    /// A needed key is absent.
    #[error("it lacks the key {0}")]
    Missing(String),
    /// A value of the wrong type.
    #[error(transparent)]
    WrongType(#[from] WrongType),
    /// A number outside of what can be.
    #[error("its key {key} is {value}, and should be {expected}")]
    OutOfRange {
        /// The key.
        key: String,
        /// What the file has.
        value: String,
        /// What can be.
        expected: String,
    },
    /// An array with an entry for each layer has another length.
    #[error("its key {key} has {found} entries for {layers} layers")]
    PerLayer {
        /// The key.
        key: String,
        /// Entries that the array has.
        found: usize,
        /// Layers that the model has.
        layers: u32,
    },
    /// One part of a model that was split into several files.
    #[error(
        "it is one of {0} parts of a model; join them to one file first (llama-gguf-split --merge)"
    )]
    Split(u64),
    /// A GGUF file, but not one of a language model.
    #[error("it holds {0} instead of a language model")]
    NotAModel(&'static str),
}

impl ModelInfo {
    /// Reads and checks the model's shape.
    pub fn from_header(header: &Header) -> Result<Self, ModelError> {
        if let Some(parts) = header.integer("split.count")?
            && parts > 1
        {
            return Err(ModelError::Split(parts));
        }
        let keys = Keys::new(header)?;
        keys.check_kind()?;
        keys.check_epsilons()?;
        keys.check_experts()?;
        keys.check_rope()?;
        let block_count = keys.needed("block_count", 1, MOST_LAYERS)?;
        keys.check_range("nextn_predict_layers", 0, block_count.into())?;
        let embedding_length = keys.needed("embedding_length", 1, u32::MAX.into())?;
        let (heads, kv_heads) = keys.heads(block_count)?;
        let first = heads.iter().copied().find(|&heads| heads > 0);
        let usual = first.map_or(0, |heads| embedding_length / heads);
        Ok(Self {
            name: header.string("general.name")?.map(str::to_owned),
            context_length: keys.needed("context_length", 1, u32::MAX.into())?,
            block_count,
            embedding_length,
            key_length: keys.head_length("key_length", usual)?,
            value_length: keys.head_length("value_length", usual)?,
            heads,
            kv_heads,
            file_type: header.integer("general.file_type")?.and_then(|n| n.try_into().ok()),
            architecture: keys.architecture.to_owned(),
        })
    }

    /// The bytes that one token of one sequence takes in a KV cache of 16-bit floats. Layers that
    /// keep less (recurrent ones, compressed attention) make it an upper bound.
    pub fn kv_bytes_per_token(&self) -> u64 {
        let length = u64::from(self.key_length) + u64::from(self.value_length);
        self.kv_heads.iter().map(|&heads| u64::from(heads) * length * 2).sum()
    }
}

/// The header, with the prefix of the architecture's keys.
struct Keys<'h> {
    header: &'h Header,
    architecture: &'h str,
}

impl<'h> Keys<'h> {
    fn new(header: &'h Header) -> Result<Self, ModelError> {
        let key = "general.architecture";
        match header.string(key)? {
            Some(architecture) if !architecture.is_empty() => Ok(Self { header, architecture }),
            _ => Err(ModelError::Missing(key.to_owned())),
        }
    }

    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    /// An integer that must be there, from `least` to `most`.
    fn needed(&self, name: &str, least: u64, most: u64) -> Result<u32, ModelError> {
        let value = self.check_range(name, least, most)?;
        value.ok_or_else(|| ModelError::Missing(self.key(name)))
    }

    /// An integer that may be absent.
    fn check_range(&self, name: &str, least: u64, most: u64) -> Result<Option<u32>, ModelError> {
        let key = self.key(name);
        let Some(value) = self.header.integer(&key)? else {
            return Ok(None);
        };
        let fits = if (least..=most).contains(&value) { u32::try_from(value).ok() } else { None };
        fits.map(Some).ok_or_else(|| {
            let expected = match most.min(u32::MAX.into()) {
                most if most == u64::from(u32::MAX) => format!("at least {least}"),
                most => format!("from {least} to {most}"),
            };
            ModelError::OutOfRange { key, value: value.to_string(), expected }
        })
    }

    fn check_kind(&self) -> Result<(), ModelError> {
        match (self.header.string("general.type")?, self.architecture) {
            (Some("adapter"), _) => Err(ModelError::NotAModel("an adapter (LoRA)")),
            (Some("mmproj"), _) | (_, "clip") => {
                Err(ModelError::NotAModel("an image or audio encoder"))
            }
            (Some("imatrix"), _) => Err(ModelError::NotAModel("an importance matrix")),
            _ => Ok(()),
        }
    }

    /// ggml asserts that what keeps a norm from dividing by zero is not negative, and NaN fails too.
    fn check_epsilons(&self) -> Result<(), ModelError> {
        for name in ["layer_norm_rms_epsilon", "layer_norm_epsilon", "group_norm_epsilon"] {
            let key = self.key(&format!("attention.{name}"));
            if let Some(value) = self.header.float(&key)?
                && !(value.is_finite() && value > 0.0)
            {
                // As the file has it, mostly: in 32 bits.
                let (value, expected) =
                    ((value as f32).to_string(), "a small positive number".into());
                return Err(ModelError::OutOfRange { key, value, expected });
            }
        }
        Ok(())
    }

    fn check_experts(&self) -> Result<(), ModelError> {
        let experts = self.check_range("expert_count", 0, MOST_EXPERTS)?.unwrap_or(0);
        let least = u32::from(experts > 0);
        // Some models route a different number of experts in each layer.
        let used_key = self.key("expert_used_count");
        let used = match self.header.get(&used_key) {
            Some(Value::Array(used)) => {
                (0..used.len()).filter_map(|layer| used.get_u64(layer)).max().unwrap_or(0)
            }
            _ => self.header.integer(&used_key)?.unwrap_or(0),
        };
        if !(u64::from(least)..=u64::from(experts)).contains(&used) {
            let expected = format!("from {least} to the {experts} experts");
            return Err(ModelError::OutOfRange {
                key: used_key,
                value: used.to_string(),
                expected,
            });
        }
        let most_groups = u64::from(experts.saturating_sub(1));
        let groups = self.check_range("expert_group_count", 0, most_groups)?.unwrap_or(0);
        if groups > 1 {
            if experts % groups != 0 {
                let expected = format!("a divisor of the {experts} experts");
                let key = self.key("expert_group_count");
                return Err(ModelError::OutOfRange { key, value: groups.to_string(), expected });
            }
            self.needed("expert_group_used_count", 1, u64::from(groups - 1))?;
        }
        Ok(())
    }

    fn check_rope(&self) -> Result<(), ModelError> {
        let key = self.key("rope.scaling.type");
        match self.header.string(&key)? {
            Some(method) if !ROPE_SCALINGS.contains(&method) => Err(ModelError::OutOfRange {
                key,
                value: format!("{method:?}"),
                expected: format!("one of {}", ROPE_SCALINGS.join(", ")),
            }),
            _ => Ok(()),
        }
    }

    /// Heads and heads with keys and values, of each layer.
    fn heads(&self, layers: u32) -> Result<(Vec<u32>, Vec<u32>), ModelError> {
        let (name, kv_name) = ("attention.head_count", "attention.head_count_kv");
        let heads = self.per_layer(name, layers)?;
        let attention = !RECURRENT.contains(&self.architecture);
        let heads = match heads {
            Some(heads) => heads,
            None if attention => return Err(ModelError::Missing(self.key(name))),
            None => vec![0; layers as usize],
        };
        let kv_heads = self.per_layer(kv_name, layers)?.unwrap_or_else(|| heads.clone());
        for (name, heads) in [(name, &heads), (kv_name, &kv_heads)] {
            if attention && heads.iter().all(|&heads| heads == 0) {
                let (key, value) = (self.key(name), "0".to_owned());
                return Err(ModelError::OutOfRange { key, value, expected: "at least 1".into() });
            }
        }
        let odd = heads.iter().zip(&kv_heads).find(|&(&heads, &kv)| kv > 0 && heads % kv != 0);
        if let Some((heads, kv)) = odd {
            let expected = format!("a divisor of the {heads} heads");
            let key = self.key(kv_name);
            return Err(ModelError::OutOfRange { key, value: kv.to_string(), expected });
        }
        Ok((heads, kv_heads))
    }

    /// A number for all layers, or an array with one for each.
    fn per_layer(&self, name: &str, layers: u32) -> Result<Option<Vec<u32>>, ModelError> {
        let key = self.key(name);
        let Some(Value::Array(array)) = self.header.get(&key) else {
            let one = self.check_range(name, 0, u32::MAX.into())?;
            return Ok(one.map(|heads| vec![heads; layers as usize]));
        };
        if array.len() != layers as usize {
            return Err(ModelError::PerLayer { key, found: array.len(), layers });
        }
        let values = (0..array.len())
            .map(|layer| array.get_u64(layer).and_then(|n| u32::try_from(n).ok()))
            .collect::<Option<Vec<_>>>();
        let found = format!("array of {}", array.element_type());
        let wrong = WrongType { key, expected: "an array of unsigned integers", found };
        values.map(Some).ok_or(ModelError::WrongType(wrong))
    }

    /// Layers with a sliding window may have heads of another length: the longer counts.
    fn head_length(&self, name: &str, usual: u32) -> Result<u32, ModelError> {
        let most = u64::from(u16::MAX);
        let length = self.check_range(&format!("attention.{name}"), 1, most)?.unwrap_or(usual);
        let windowed = self.check_range(&format!("attention.{name}_swa"), 1, most)?;
        Ok(length.max(windowed.unwrap_or(0)))
    }
}
