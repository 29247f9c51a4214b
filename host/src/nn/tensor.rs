//! Tensors as the host holds them.

use std::sync::Arc;

use super::NnError;

/// The type of a tensor's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    Fp16,
    Fp32,
    Fp64,
    Bf16,
    U8,
    I32,
    I64,
}

impl Element {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::Fp16 | Self::Bf16 => 2,
            Self::Fp32 | Self::I32 => 4,
            Self::Fp64 | Self::I64 => 8,
        }
    }
}

/// A row-major array, little-endian, without gaps.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// The size of each dimension, outermost first.
    pub dimensions: Vec<u32>,
    /// The type of the elements.
    pub element: Element,
    /// The elements; shared, since they may be many and are never changed.
    pub data: Arc<Vec<u8>>,
}

/// A tensor and the name of the input or output that it is.
pub type NamedTensor = (String, Tensor);

impl Tensor {
    /// A tensor of bytes that are checked when they are read.
    pub fn new(dimensions: Vec<u32>, element: Element, data: Vec<u8>) -> Self {
        Self { dimensions, element, data: Arc::new(data) }
    }

    /// A tensor of floats. `data` must have as many as the dimensions say.
    pub fn from_f32(dimensions: Vec<u32>, data: &[f32]) -> Self {
        debug_assert_eq!(dimensions.iter().map(|&d| d as usize).product::<usize>(), data.len());
        let data = bytemuck::cast_slice(data).to_vec();
        Self::new(dimensions, Element::Fp32, data)
    }

    /// The number of elements, if the data's length agrees with the dimensions.
    fn checked_len(&self, name: &str) -> Result<usize, NnError> {
        let count = self
            .dimensions
            .iter()
            .try_fold(1usize, |product, &size| product.checked_mul(size as usize));
        match count.and_then(|count| count.checked_mul(self.element.size())) {
            Some(bytes) if bytes == self.data.len() => Ok(bytes / self.element.size()),
            _ => Err(NnError::invalid_argument(format!(
                "{name}: {} bytes of data don't make {:?} elements of shape {:?}",
                self.data.len(),
                self.element,
                self.dimensions
            ))),
        }
    }

    fn expect(&self, name: &str, element: Element) -> Result<(), NnError> {
        if self.element == element {
            return self.checked_len(name).map(drop);
        }
        Err(NnError::invalid_argument(format!(
            "{name}: elements must be {element:?}, not {:?}",
            self.element
        )))
    }

    /// The elements of an I64 tensor.
    pub fn to_i64(&self, name: &str) -> Result<Vec<i64>, NnError> {
        self.expect(name, Element::I64)?;
        let (chunks, _) = self.data.as_chunks::<8>();
        Ok(chunks.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect())
    }

    /// The elements of an FP32 tensor.
    pub fn to_f32(&self, name: &str) -> Result<Vec<f32>, NnError> {
        self.expect(name, Element::Fp32)?;
        let (chunks, _) = self.data.as_chunks::<4>();
        Ok(chunks.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    }

    /// The elements of a U8 tensor.
    pub fn to_u8(&self, name: &str) -> Result<Vec<u8>, NnError> {
        self.expect(name, Element::U8)?;
        Ok(self.data.to_vec())
    }

    /// The elements of an I32 tensor.
    pub fn to_i32(&self, name: &str) -> Result<Vec<i32>, NnError> {
        self.expect(name, Element::I32)?;
        let (chunks, _) = self.data.as_chunks::<4>();
        Ok(chunks.iter().map(|bytes| i32::from_le_bytes(*bytes)).collect())
    }
}
