//! Reads the header of a GGUF file: metadata and the list of tensors, never the tensors' data.
//!
//! The file is not trusted. Every count and length is held against what the file can contain before
//! memory is set aside for it, so a damaged header costs an error and no more.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use crate::source::{Source, Trouble};
use crate::tensor::{MAX_DIMENSIONS, MAX_NAME, TensorInfo, TensorType};
use crate::value::{Array, Value, ValueType};

const MAGIC: [u8; 4] = *b"GGUF";
pub(crate) const ALIGNMENT_KEY: &str = "general.alignment";
const DEFAULT_ALIGNMENT: u64 = 32;
/// Length of the key, one byte of it, type and value.
const SMALLEST_ENTRY: u64 = 8 + 1 + 4 + 1;
/// Length of the name, number of dimensions, type and offset.
const SMALLEST_TENSOR: u64 = 8 + 4 + 4 + 8;

/// The header of a GGUF file.
#[derive(Debug, Clone)]
pub struct Header {
    version: u32,
    metadata: Vec<(String, Value)>,
    index: HashMap<String, usize>,
    tensors: Vec<TensorInfo>,
    data_offset: u64,
}

/// Why a header can't be read. Each is a sentence without the file's name.
#[derive(Debug, thiserror::Error)]
pub enum HeaderError {
    /// The operating system's word.
    #[error("it can't be read: {0}")]
    Io(#[from] io::Error),
    /// Another kind of file.
    #[error("it is not a GGUF file: it begins with \"{}\" instead of \"GGUF\"", .0.escape_ascii())]
    NotGguf([u8; 4]),
    /// The byte order of the version is turned around.
    #[error("it was made for a big-endian machine, and this is a little-endian one")]
    BigEndian,
    /// Versions 2 and 3 can be read.
    #[error("it has GGUF version {0}, and only versions 2 and 3 can be read")]
    Version(u32),
    /// The file ends inside the header.
    #[error("it is cut off: it ends after {size} bytes, inside {place}")]
    CutOff {
        /// The file's size in bytes.
        size: u64,
        /// What was being read.
        place: String,
    },
    /// A count or length beyond what the file, or any header, can hold.
    #[error("its header is damaged: {place} claims {claimed} {unit}, more than there can be")]
    Claim {
        /// What made the claim.
        place: String,
        /// The claim.
        claimed: u64,
        /// What is counted.
        unit: &'static str,
    },
    /// Anything else that can't be.
    #[error("its header is damaged: {place} {reason}")]
    Damaged {
        /// What is damaged.
        place: String,
        /// How, as the end of a sentence.
        reason: String,
    },
    /// Tensor data is missing at the end.
    #[error("it is cut off: it should have at least {expected} bytes and has {found}")]
    MissingData {
        /// Where the last tensor's data ends, in bytes from the start of the file.
        expected: u64,
        /// The file's size in bytes.
        found: u64,
    },
}

/// A metadata key has a value of the wrong type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("its key {key} should be {expected} and is {found}")]
pub struct WrongType {
    /// The key.
    pub key: String,
    /// What was expected, with an article.
    pub expected: &'static str,
    /// What the file has.
    pub found: String,
}

impl Header {
    /// Reads the header of the file at `path`, and checks that the data of all tensors is there.
    pub fn read(path: &Path) -> Result<Self, HeaderError> {
        let file = File::open(path)?;
        let size = file.metadata()?.len();
        Self::parse(BufReader::with_capacity(1 << 18, file), size)
    }

    /// Reads a header from the start of `reader`, whose content is `size` bytes long.
    pub fn parse(reader: impl Read, size: u64) -> Result<Self, HeaderError> {
        let mut source = Source::new(reader, size);
        let version = read_version(&mut source)?;
        let tensor_count = source.u64().map_err(|e| e.within("its first bytes", size))?;
        let entry_count = source.u64().map_err(|e| e.within("its first bytes", size))?;
        let room = source.remaining();
        if entry_count > room / SMALLEST_ENTRY {
            return Err(claim("the header", entry_count, "metadata entries"));
        }
        if tensor_count > room / SMALLEST_TENSOR {
            return Err(claim("the header", tensor_count, "tensors"));
        }
        let (metadata, index) = read_metadata(&mut source, entry_count)?;
        let tensors = read_tensors(&mut source, tensor_count)?;
        let mut header = Self { version, metadata, index, tensors, data_offset: 0 };
        let alignment = header.alignment()?;
        header.data_offset = source.position().next_multiple_of(alignment);
        header.check_data(alignment, size)?;
        Ok(header)
    }

    /// The version of the format, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// All metadata, in the file's order.
    pub fn metadata(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.metadata.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// All tensors, in the file's order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Where the tensors' data begins, in bytes from the start of the file.
    pub fn data_offset(&self) -> u64 {
        self.data_offset
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&position| &self.metadata[position].1)
    }

    /// The string under `key`.
    pub fn string(&self, key: &str) -> Result<Option<&str>, WrongType> {
        self.typed(key, "a string", Value::as_str)
    }

    /// The integer under `key`, of any width but not negative.
    pub fn integer(&self, key: &str) -> Result<Option<u64>, WrongType> {
        self.typed(key, "an unsigned integer", Value::as_u64)
    }

    /// The floating-point number under `key`, of either width.
    pub fn float(&self, key: &str) -> Result<Option<f64>, WrongType> {
        self.typed(key, "a floating-point number", Value::as_f64)
    }

    /// The truth value under `key`.
    pub fn boolean(&self, key: &str) -> Result<Option<bool>, WrongType> {
        self.typed(key, "a bool", Value::as_bool)
    }

    /// The array under `key`.
    pub fn array(&self, key: &str) -> Result<Option<&Array>, WrongType> {
        self.typed(key, "an array", Value::as_array)
    }

    /// The value of `key` as `convert` sees it; a value that it doesn't take is an error that says
    /// what was `expected`.
    pub(crate) fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, WrongType> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        convert(value).map(Some).ok_or_else(|| WrongType {
            key: key.to_owned(),
            expected,
            found: value.describe(),
        })
    }

    fn alignment(&self) -> Result<u64, HeaderError> {
        let alignment = match self.get(ALIGNMENT_KEY) {
            None => DEFAULT_ALIGNMENT,
            Some(Value::U32(alignment)) => u64::from(*alignment),
            Some(other) => {
                return Err(damaged(
                    ALIGNMENT_KEY,
                    format!("should be u32 and is {}", other.describe()),
                ));
            }
        };
        if !alignment.is_power_of_two() {
            return Err(damaged(ALIGNMENT_KEY, format!("is {alignment}, not a power of two")));
        }
        Ok(alignment)
    }

    fn check_data(&self, alignment: u64, size: u64) -> Result<(), HeaderError> {
        let mut expected = if self.tensors.is_empty() { 0 } else { self.data_offset };
        for tensor in &self.tensors {
            if !tensor.offset.is_multiple_of(alignment) {
                let reason = format!("begins at {}, not a multiple of {alignment}", tensor.offset);
                return Err(damaged(&tensor_place(&tensor.name), reason));
            }
            let bytes = match tensor.kind.block() {
                None => 0,
                Some(_) => tensor.bytes().ok_or_else(|| too_large(tensor))?,
            };
            let end = self
                .data_offset
                .checked_add(tensor.offset)
                .and_then(|start| start.checked_add(bytes))
                .ok_or_else(|| too_large(tensor))?;
            expected = expected.max(end);
        }
        if expected > size {
            return Err(HeaderError::MissingData { expected, found: size });
        }
        Ok(())
    }
}

fn read_version(source: &mut Source<impl Read>) -> Result<u32, HeaderError> {
    let size = source.size();
    let magic: [u8; 4] = source.bytes().map_err(|e| e.within("its first bytes", size))?;
    if magic != MAGIC {
        return Err(HeaderError::NotGguf(magic));
    }
    let version = source.u32().map_err(|e| e.within("its first bytes", size))?;
    match version {
        2 | 3 => Ok(version),
        _ if matches!(version.swap_bytes(), 1..=3) => Err(HeaderError::BigEndian),
        _ => Err(HeaderError::Version(version)),
    }
}

type Metadata = (Vec<(String, Value)>, HashMap<String, usize>);

fn read_metadata(source: &mut Source<impl Read>, count: u64) -> Result<Metadata, HeaderError> {
    let size = source.size();
    let mut metadata = Vec::new();
    let mut index = HashMap::new();
    for number in 0..count {
        let place = || format!("metadata entry {}", number + 1);
        let key = source.string().map_err(|e| e.within(place(), size))?;
        if key.is_empty() {
            return Err(damaged(&place(), "has an empty key".into()));
        }
        let place = || format!("the key {key:?}");
        let code = source.u32().map_err(|e| e.within(place(), size))?;
        let value = match value_type(code, &place)? {
            ValueType::Array => Value::Array(read_array(source, &place)?),
            kind => read_scalar(source, kind).map_err(|e| e.within(place(), size))?,
        };
        if index.insert(key.clone(), metadata.len()).is_some() {
            return Err(damaged(&place(), "occurs twice".into()));
        }
        metadata.push((key, value));
    }
    Ok((metadata, index))
}

fn value_type(code: u32, place: &impl Fn() -> String) -> Result<ValueType, HeaderError> {
    ValueType::from_code(code)
        .ok_or_else(|| damaged(&place(), format!("has a value of unknown type {code}")))
}

fn read_scalar(source: &mut Source<impl Read>, kind: ValueType) -> Result<Value, Trouble> {
    Ok(match kind {
        ValueType::U8 => Value::U8(u8::from_le_bytes(source.bytes()?)),
        ValueType::I8 => Value::I8(i8::from_le_bytes(source.bytes()?)),
        ValueType::U16 => Value::U16(u16::from_le_bytes(source.bytes()?)),
        ValueType::I16 => Value::I16(i16::from_le_bytes(source.bytes()?)),
        ValueType::U32 => Value::U32(u32::from_le_bytes(source.bytes()?)),
        ValueType::I32 => Value::I32(i32::from_le_bytes(source.bytes()?)),
        ValueType::F32 => Value::F32(f32::from_le_bytes(source.bytes()?)),
        ValueType::U64 => Value::U64(u64::from_le_bytes(source.bytes()?)),
        ValueType::I64 => Value::I64(i64::from_le_bytes(source.bytes()?)),
        ValueType::F64 => Value::F64(f64::from_le_bytes(source.bytes()?)),
        ValueType::Bool => Value::Bool(source.bytes::<1>()? != [0]),
        ValueType::String => Value::String(source.string()?),
        ValueType::Array => unreachable!("arrays are read by read_array"),
    })
}

fn read_array(
    source: &mut Source<impl Read>,
    place: &impl Fn() -> String,
) -> Result<Array, HeaderError> {
    let size = source.size();
    let code = source.u32().map_err(|e| e.within(place(), size))?;
    let kind = value_type(code, place)?;
    let count = source.u64().map_err(|e| e.within(place(), size))?;
    if count > source.remaining() / kind.smallest_size() {
        return Err(claim(place(), count, "elements"));
    }
    let array = match kind {
        ValueType::U8 => source.list(count, u8::from_le_bytes).map(Array::U8),
        ValueType::I8 => source.list(count, i8::from_le_bytes).map(Array::I8),
        ValueType::U16 => source.list(count, u16::from_le_bytes).map(Array::U16),
        ValueType::I16 => source.list(count, i16::from_le_bytes).map(Array::I16),
        ValueType::U32 => source.list(count, u32::from_le_bytes).map(Array::U32),
        ValueType::I32 => source.list(count, i32::from_le_bytes).map(Array::I32),
        ValueType::F32 => source.list(count, f32::from_le_bytes).map(Array::F32),
        ValueType::U64 => source.list(count, u64::from_le_bytes).map(Array::U64),
        ValueType::I64 => source.list(count, i64::from_le_bytes).map(Array::I64),
        ValueType::F64 => source.list(count, f64::from_le_bytes).map(Array::F64),
        ValueType::Bool => source.list(count, |byte: [u8; 1]| byte != [0]).map(Array::Bool),
        ValueType::String => source.strings(count).map(Array::String),
        ValueType::Array => {
            return Err(damaged(&place(), "is an array of arrays, which GGML can't read".into()));
        }
    };
    array.map_err(|e| e.within(place(), size))
}

fn read_tensors(
    source: &mut Source<impl Read>,
    count: u64,
) -> Result<Vec<TensorInfo>, HeaderError> {
    let mut tensors = Vec::new();
    let mut names = HashSet::new();
    for number in 0..count {
        let tensor = read_tensor(source, number)?;
        if !names.insert(tensor.name.clone()) {
            return Err(damaged(&tensor_place(&tensor.name), "occurs twice".into()));
        }
        tensors.push(tensor);
    }
    Ok(tensors)
}

fn read_tensor(source: &mut Source<impl Read>, number: u64) -> Result<TensorInfo, HeaderError> {
    let size = source.size();
    let place = || format!("tensor entry {}", number + 1);
    let name = source.string().map_err(|e| e.within(place(), size))?;
    if name.len() > MAX_NAME {
        let reason = format!("has a name of {} bytes, more than {MAX_NAME}", name.len());
        return Err(damaged(&place(), reason));
    }
    let place = || tensor_place(&name);
    let rank = source.u32().map_err(|e| e.within(place(), size))?;
    if rank > MAX_DIMENSIONS {
        return Err(damaged(
            &place(),
            format!("has {rank} dimensions, more than {MAX_DIMENSIONS}"),
        ));
    }
    let mut dimensions = Vec::new();
    for _ in 0..rank {
        dimensions.push(source.u64().map_err(|e| e.within(place(), size))?);
    }
    let kind = TensorType(source.u32().map_err(|e| e.within(place(), size))?);
    let offset = source.u64().map_err(|e| e.within(place(), size))?;
    let row = dimensions.first().copied().unwrap_or(1);
    if let Some(block) = kind.block()
        && !row.is_multiple_of(block.elements)
    {
        let reason = format!("has rows of {row}, not a multiple of {kind}'s {}", block.elements);
        return Err(damaged(&place(), reason));
    }
    let tensor = TensorInfo { dimensions, kind, offset, name };
    if tensor.elements().is_none() {
        return Err(too_large(&tensor));
    }
    Ok(tensor)
}

fn tensor_place(name: &str) -> String {
    format!("tensor {name:?}")
}

fn too_large(tensor: &TensorInfo) -> HeaderError {
    let reason = format!("has the impossible shape {:?}", tensor.dimensions);
    damaged(&tensor_place(&tensor.name), reason)
}

fn damaged(place: &str, reason: String) -> HeaderError {
    HeaderError::Damaged { place: place.to_owned(), reason }
}

fn claim(place: impl Into<String>, claimed: u64, unit: &'static str) -> HeaderError {
    HeaderError::Claim { place: place.into(), claimed, unit }
}

impl Trouble {
    /// The error of a file of `size` bytes, with the place where it was met.
    fn within(self, place: impl Into<String>, size: u64) -> HeaderError {
        let place = place.into();
        match self {
            Self::Io(error) => HeaderError::Io(error),
            Self::Short => HeaderError::CutOff { size, place },
            Self::Claim(claimed) => HeaderError::Claim { place, claimed, unit: "bytes" },
            Self::NotUtf8 => {
                HeaderError::Damaged { place, reason: "has a string that is not UTF-8".into() }
            }
        }
    }
}
