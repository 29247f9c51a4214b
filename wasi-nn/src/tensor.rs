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

    /// The elements of an FP32 tensor, as bytes: little-endian, four each.
    ///
    /// # Errors
    ///
    /// `invalid-encoding` when the tensor isn't FP32, or its data isn't a whole number of elements.
    pub fn f32_bytes(&self) -> Result<Vec<u8>, Error> {
        self.bytes(TensorType::Fp32)
    }

    /// The elements of an FP32 tensor. Errors as for [`Tensor::f32_bytes`].
    pub fn to_f32(&self) -> Result<Vec<f32>, Error> {
        let bytes = self.bytes(TensorType::Fp32)?;
        let (elements, _) = bytes.as_chunks::<4>();
        Ok(elements.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    }

    /// The elements of an FP64 tensor. Errors as for [`Tensor::f32_bytes`].
    pub fn to_f64(&self) -> Result<Vec<f64>, Error> {
        let bytes = self.bytes(TensorType::Fp64)?;
        let (elements, _) = bytes.as_chunks::<8>();
        Ok(elements.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect())
    }

    /// The elements of an I64 tensor. Errors as for [`Tensor::f32_bytes`].
    pub fn to_i64(&self) -> Result<Vec<i64>, Error> {
        let bytes = self.bytes(TensorType::I64)?;
        let (elements, _) = bytes.as_chunks::<8>();
        Ok(elements.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect())
    }

    /// The elements of an I32 tensor. Errors as for [`Tensor::f32_bytes`].
    pub fn to_i32(&self) -> Result<Vec<i32>, Error> {
        let bytes = self.bytes(TensorType::I32)?;
        let (elements, _) = bytes.as_chunks::<4>();
        Ok(elements.iter().map(|bytes| i32::from_le_bytes(*bytes)).collect())
    }

    fn bytes(&self, expected: TensorType) -> Result<Vec<u8>, Error> {
        let ty = self.0.ty();
        if ty != expected {
            return Err(Error::new(
                ErrorCode::InvalidEncoding,
                format!("expected a tensor of {expected:?}, found {ty:?}"),
            ));
        }
        let data = self.0.data();
        let size = if matches!(expected, TensorType::I64 | TensorType::Fp64) { 8 } else { 4 };
        if !data.len().is_multiple_of(size) {
            return Err(Error::new(
                ErrorCode::InvalidEncoding,
                format!("{} bytes are not a whole number of {expected:?} elements", data.len()),
            ));
        }
        Ok(data)
    }
}
