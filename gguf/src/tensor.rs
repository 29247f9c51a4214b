//! What the header says about a tensor, and how large tensors of each type are.

use std::fmt;

/// The most dimensions that ggml knows.
pub(crate) const MAX_DIMENSIONS: u32 = 4;
/// ggml keeps names in 64 bytes, the last of them zero.
pub(crate) const MAX_NAME: usize = 63;

/// The entry of one tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name, unique in the file.
    pub name: String,
    /// Elements in each dimension, the innermost (a row's length) first.
    pub dimensions: Vec<u64>,
    /// How its elements are encoded.
    pub kind: TensorType,
    /// Where its data begins, in bytes from the start of the data section.
    pub offset: u64,
}

/// The number that ggml gives to an encoding of tensor elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorType(pub u32);

/// Elements are encoded in blocks of `elements`, each `bytes` long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Elements in a block; a row is a whole number of blocks.
    pub elements: u64,
    /// Bytes of a block.
    pub bytes: u64,
}

/// Name, elements and bytes of a block, by number. Numbers that ggml gave up have no name.
const TYPES: [(&str, u64, u64); 43] = [
    ("F32", 1, 4),
    ("F16", 1, 2),
    ("Q4_0", 32, 18),
    ("Q4_1", 32, 20),
    ("", 0, 0),
    ("", 0, 0),
    ("Q5_0", 32, 22),
    ("Q5_1", 32, 24),
    ("Q8_0", 32, 34),
    ("Q8_1", 32, 36),
    ("Q2_K", 256, 84),
    ("Q3_K", 256, 110),
    ("Q4_K", 256, 144),
    ("Q5_K", 256, 176),
    ("Q6_K", 256, 210),
    ("Q8_K", 256, 292),
    ("IQ2_XXS", 256, 66),
    ("IQ2_XS", 256, 74),
    ("IQ3_XXS", 256, 98),
    ("IQ1_S", 256, 50),
    ("IQ4_NL", 32, 18),
    ("IQ3_S", 256, 110),
    ("IQ2_S", 256, 82),
    ("IQ4_XS", 256, 136),
    ("I8", 1, 1),
    ("I16", 1, 2),
    ("I32", 1, 4),
    ("I64", 1, 8),
    ("F64", 1, 8),
    ("IQ1_M", 256, 56),
    ("BF16", 1, 2),
    ("", 0, 0),
    ("", 0, 0),
    ("", 0, 0),
    ("TQ1_0", 256, 54),
    ("TQ2_0", 256, 66),
    ("", 0, 0),
    ("", 0, 0),
    ("", 0, 0),
    ("MXFP4", 32, 17),
    ("NVFP4", 64, 36),
    ("Q1_0", 128, 18),
    ("Q2_0", 64, 18),
];

impl TensorType {
    /// 32-bit floating point.
    pub const F32: Self = Self(0);
    /// 16-bit floating point.
    pub const F16: Self = Self(1);
    /// 4-bit blocks of 32 with a scale.
    pub const Q4_0: Self = Self(2);
    /// 8-bit blocks of 32 with a scale.
    pub const Q8_0: Self = Self(8);

    fn entry(self) -> Option<&'static (&'static str, u64, u64)> {
        TYPES.get(self.0 as usize).filter(|(name, ..)| !name.is_empty())
    }

    /// How its elements are packed; `None` for types that this crate doesn't know.
    pub fn block(self) -> Option<Block> {
        self.entry().map(|&(_, elements, bytes)| Block { elements, bytes })
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.entry() {
            Some((name, ..)) => f.write_str(name),
            None => write!(f, "unknown type {}", self.0),
        }
    }
}

impl TensorInfo {
    /// How many elements it has; `None` when that doesn't fit in 63 bits.
    pub fn elements(&self) -> Option<u64> {
        self.dimensions
            .iter()
            .try_fold(1u64, |product, &n| product.checked_mul(n))
            .filter(|&n| i64::try_from(n).is_ok())
    }

    /// How many bytes its data takes; `None` when the type is unknown or the number is absurd.
    pub fn bytes(&self) -> Option<u64> {
        let block = self.kind.block()?;
        (self.elements()? / block.elements).checked_mul(block.bytes)
    }
}
