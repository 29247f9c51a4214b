//! Writes small GGUF files for tests and tools. All of the file is built in memory.
//!
//! What it is given it writes, sensible or not: tests need damaged files too.

use std::io;
use std::path::Path;

use crate::tensor::{TensorInfo, TensorType};
use crate::value::{Array, Value};

/// A GGUF file in the making.
///
/// ```
/// use spinfer_gguf::{Header, TensorType, write::Writer};
///
/// let file = Writer::new()
///     .set("general.architecture", "llama")
///     .set("llama.block_count", 2u32)
///     .set("tokenizer.ggml.tokens", vec!["a", "b"])
///     .tensor("output.weight", &[2], TensorType::F32, vec![0; 8])
///     .to_bytes();
/// let header = Header::parse(file.as_slice(), file.len() as u64).unwrap();
/// assert_eq!(header.integer("llama.block_count"), Ok(Some(2)));
/// ```
#[derive(Debug, Clone)]
pub struct Writer {
    version: u32,
    alignment: u64,
    metadata: Vec<(String, Value)>,
    tensors: Vec<(TensorInfo, Vec<u8>)>,
}

impl Default for Writer {
    fn default() -> Self {
        Self { version: 3, alignment: 32, metadata: Vec::new(), tensors: Vec::new() }
    }
}

impl Writer {
    /// An empty file of version 3.
    pub fn new() -> Self {
        Self::default()
    }

    /// Another version number; the layout stays that of versions 2 and 3.
    pub fn version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    /// Sets `key`, in place if it is there already.
    pub fn set(mut self, key: &str, value: impl Into<Value>) -> Self {
        let value = value.into();
        if let (crate::header::ALIGNMENT_KEY, Some(alignment)) = (key, value.as_u64()) {
            self.alignment = alignment.max(1);
        }
        match self.metadata.iter_mut().find(|(known, _)| known == key) {
            Some((_, old)) => *old = value,
            None => self.metadata.push((key.to_owned(), value)),
        }
        self
    }

    /// Adds an entry without looking whether the key is there already.
    pub fn push(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.metadata.push((key.to_owned(), value.into()));
        self
    }

    /// Takes `key` away.
    pub fn unset(mut self, key: &str) -> Self {
        self.metadata.retain(|(known, _)| known != key);
        self
    }

    /// Adds a tensor behind those before it. `dimensions`: the innermost first; `data`: its elements
    /// as `kind` encodes them.
    pub fn tensor(
        mut self,
        name: &str,
        dimensions: &[u64],
        kind: TensorType,
        data: Vec<u8>,
    ) -> Self {
        let end = |(info, data): &(TensorInfo, Vec<u8>)| info.offset + data.len() as u64;
        let offset = self.tensors.last().map_or(0, end).next_multiple_of(self.alignment);
        let info =
            TensorInfo { name: name.to_owned(), dimensions: dimensions.to_vec(), kind, offset };
        self.tensors.push((info, data));
        self
    }

    /// The file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(b"GGUF");
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            put_string(&mut out, key);
            out.extend((value.value_type() as u32).to_le_bytes());
            put_value(&mut out, value);
        }
        for (info, _) in &self.tensors {
            put_string(&mut out, &info.name);
            out.extend((info.dimensions.len() as u32).to_le_bytes());
            out.extend(info.dimensions.iter().flat_map(|n| n.to_le_bytes()));
            out.extend(info.kind.0.to_le_bytes());
            out.extend(info.offset.to_le_bytes());
        }
        if !self.tensors.is_empty() {
            self.pad(&mut out);
        }
        for (_, data) in &self.tensors {
            out.extend(data);
            self.pad(&mut out);
        }
        out
    }

    /// Writes the file to `path`.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        std::fs::write(path, self.to_bytes())
    }

    fn pad(&self, out: &mut Vec<u8>) {
        out.resize((out.len() as u64).next_multiple_of(self.alignment) as usize, 0);
    }
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(n) => out.extend(n.to_le_bytes()),
        Value::I8(n) => out.extend(n.to_le_bytes()),
        Value::U16(n) => out.extend(n.to_le_bytes()),
        Value::I16(n) => out.extend(n.to_le_bytes()),
        Value::U32(n) => out.extend(n.to_le_bytes()),
        Value::I32(n) => out.extend(n.to_le_bytes()),
        Value::F32(n) => out.extend(n.to_le_bytes()),
        Value::U64(n) => out.extend(n.to_le_bytes()),
        Value::I64(n) => out.extend(n.to_le_bytes()),
        Value::F64(n) => out.extend(n.to_le_bytes()),
        Value::Bool(b) => out.push((*b).into()),
        Value::String(text) => put_string(out, text),
        Value::Array(array) => put_array(out, array),
    }
}

fn put_array(out: &mut Vec<u8>, array: &Array) {
    out.extend((array.element_type() as u32).to_le_bytes());
    out.extend((array.len() as u64).to_le_bytes());
    match array {
        Array::U8(v) => out.extend(v),
        Array::I8(v) => out.extend(v.iter().flat_map(|n| n.to_le_bytes())),
        Array::U16(v) => out.extend(v.iter().flat_map(|n| n.to_le_bytes())),
        Array::I16(v) => out.extend(v.iter().flat_map(|n| n.to_le_bytes())),
        Array::U32(v) => out.extend(v.iter().flat_map(|n| n.to_le_bytes())),
        Array::I32(v) => out.extend(v.iter().flat_map(|n| n.to_le_bytes())),
        Array::F32(v) => out.extend(v.iter().flat_map(|n| n.to_le_bytes())),
        Array::U64(v) => out.extend(v.iter().flat_map(|n| n.to_le_bytes())),
        Array::I64(v) => out.extend(v.iter().flat_map(|n| n.to_le_bytes())),
        Array::F64(v) => out.extend(v.iter().flat_map(|n| n.to_le_bytes())),
        Array::Bool(v) => out.extend(v.iter().map(|&b| u8::from(b))),
        Array::String(v) => v.iter().for_each(|text| put_string(out, text)),
    }
}
