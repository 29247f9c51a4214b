//! Tensors from slices, and slices from tensors.

use crate::bindings::wasi::nn::tensor as raw;
use crate::{Error, ErrorCode};

pub use raw::TensorType;

/// A typed, row-major array held by the host.
#[derive(Debug)]
pub struct Tensor(pub(crate) raw::Tensor);

impl Tensor {
    /// A tensor of the given shape. The product of `dimensions` must be the number of values; the
    /// host refuses others when it computes.
    pub fn from_i64(dimensions: &[u32], values: &[i64]) -> Self {
        Self::new(
            dimensions,
            TensorType::I64,
            values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        )
    }

    /// Like [`Tensor::from_i64`].
    pub fn from_i32(dimensions: &[u32], values: &[i32]) -> Self {
        Self::new(
            dimensions,
            TensorType::I32,
            values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        )
    }

    /// A tensor of the given type from its little-endian bytes.
    pub fn new(dimensions: &[u32], ty: TensorType, data: Vec<u8>) -> Self {
        Self(raw::Tensor::new(dimensions, ty, &data))
    }

    /// The size of each dimension, outermost first.
    pub fn dimensions(&self) -> Vec<u32> {
        self.0.dimensions()
    }

    /// Replaces what is in `values` with the tensor's elements; its memory is used again.
    ///
    /// # Errors
    ///
    /// `invalid-encoding` when the tensor isn't FP32, or its data isn't a whole number of elements.
    pub fn read_f32(&self, values: &mut Vec<f32>) -> Result<(), Error> {
        self.read(TensorType::Fp32, values, f32::from_le_bytes)
    }

    /// Like [`Tensor::read_f32`], for I32.
    pub fn read_i32(&self, values: &mut Vec<i32>) -> Result<(), Error> {
        self.read(TensorType::I32, values, i32::from_le_bytes)
    }

    fn read<T>(
        &self,
        expected: TensorType,
        values: &mut Vec<T>,
        element: fn([u8; 4]) -> T,
    ) -> Result<(), Error> {
        let ty = self.0.ty();
        if ty != expected {
            return Err(Error::new(
                ErrorCode::InvalidEncoding,
                format!("expected a tensor of {expected:?}, found {ty:?}"),
            ));
        }
        let data = self.0.data();
        let (elements, rest) = data.as_chunks::<4>();
        if !rest.is_empty() {
            return Err(Error::new(
                ErrorCode::InvalidEncoding,
                format!("{} bytes are not a whole number of {expected:?} elements", data.len()),
            ));
        }
        values.clear();
        values.extend(elements.iter().map(|bytes| element(*bytes)));
        Ok(())
    }
}
