//! `wasi:nn` for a component: translation between the interface and plain Rust, and no logic.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use wasmtime::StoreContextMut;
use wasmtime::component::{HasData, Linker, Resource, ResourceTable};

use super::{Arrival, Element, ExecutionContext, Graph, NnError, NnErrorCode, Registry, Tensor};

mod bindings {
    wasmtime::component::bindgen!({
        path: "../wit/wasi-nn.wit",
        world: "ml",
        imports: {
            "wasi:nn/inference.[method]graph-execution-context.compute": async | trappable,
            default: trappable,
        },
        with: {
            "wasi:nn/tensor@0.2.0-rc-2024-10-28.tensor": crate::nn::Tensor,
            "wasi:nn/errors@0.2.0-rc-2024-10-28.error": crate::nn::NnError,
            "wasi:nn/graph@0.2.0-rc-2024-10-28.graph": crate::nn::Graph,
            "wasi:nn/inference@0.2.0-rc-2024-10-28.graph-execution-context": crate::nn::ExecutionContext,
        },
    });
}

use bindings::wasi::nn::{errors, graph, inference, tensor};

/// What one instance has of `wasi:nn`.
pub struct NnCtx {
    /// The component's id.
    pub component: Arc<str>,
    /// When the request came that the instance is there for.
    pub came: Instant,
    /// The request, until it asks for a model.
    pub arrival: Option<Arrival>,
    /// The models.
    pub registry: Registry,
    /// Those that this component may use.
    pub allowed: Arc<BTreeSet<String>>,
    /// Is told of the instance's calls of `compute`.
    pub observer: Arc<dyn ComputeObserver>,
    /// How many epochs the instance may run between two calls of `compute`; one more and it ends.
    pub most_ticks: u32,
    /// What it uses.
    pub used: Used,
}

/// What an instance uses of its limits.
#[derive(Default)]
pub struct Used {
    /// Epochs that it has run since it last computed.
    pub ticks: u32,
    /// Bytes of the tensors that it holds.
    tensor_bytes: usize,
    /// Execution contexts that it holds.
    contexts: usize,
}

/// The most bytes of tensors that one instance may hold in the host.
const MOST_TENSOR_BYTES: usize = 1 << 30;

/// The most execution contexts that one instance may hold.
const MOST_CONTEXTS: usize = 16;

/// Who is told when an instance computes.
pub trait ComputeObserver: Send + Sync {
    /// A call begins.
    fn begins(&self) {}

    /// A call has ended.
    fn ended(&self) {}
}

/// Nobody.
impl ComputeObserver for () {}

/// A view of an instance's state.
pub struct NnView<'a> {
    /// The instance's resources.
    pub table: &'a mut ResourceTable,
    /// Its part of `wasi:nn`.
    pub ctx: &'a mut NnCtx,
}

/// State that has `wasi:nn` in it.
pub trait NnState: Send + 'static {
    /// The view of it.
    fn nn(&mut self) -> NnView<'_>;
}

struct HasNn;

impl HasData for HasNn {
    type Data<'a> = NnView<'a>;
}

/// As the WIT names it.
const TENSOR_INTERFACE: &str = "wasi:nn/tensor@0.2.0-rc-2024-10-28";

/// Gives components `wasi:nn`.
pub fn add_to_linker<T: NnState>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    tensor::add_to_linker::<T, HasNn>(linker, T::nn)?;
    share_data(linker)?;
    graph::add_to_linker::<T, HasNn>(linker, T::nn)?;
    inference::add_to_linker::<T, HasNn>(linker, T::nn)?;
    errors::add_to_linker::<T, HasNn>(linker, T::nn)
}

/// Replaces `tensor.data` by one that writes the elements into the guest's memory from where they
/// are: what is generated from the WIT would need a copy of its own first.
fn share_data<T: NnState>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    linker.allow_shadowing(true);
    let data = |mut store: StoreContextMut<'_, T>, (tensor,): (Resource<Tensor>,)| {
        Ok((store.data_mut().nn().table.get(&tensor)?.data.clone(),))
    };
    linker.instance(TENSOR_INTERFACE)?.func_wrap("[method]tensor.data", data)?;
    linker.allow_shadowing(false);
    Ok(())
}

impl NnView<'_> {
    fn result<T>(
        &mut self,
        result: Result<T, NnError>,
    ) -> wasmtime::Result<Result<T, Resource<NnError>>> {
        Ok(match result {
            Ok(value) => Ok(value),
            Err(error) => Err(self.table.push(error)?),
        })
    }
}

impl NnView<'_> {
    /// Keeps a tensor for the guest. A guest that holds too many ends.
    fn push_tensor(&mut self, tensor: Tensor) -> wasmtime::Result<Resource<Tensor>> {
        self.ctx.used.tensor_bytes += tensor.data.len();
        if self.ctx.used.tensor_bytes > MOST_TENSOR_BYTES {
            return Err(wasmtime::Error::msg(format!(
                "it holds more than {MOST_TENSOR_BYTES} bytes of tensors"
            )));
        }
        Ok(self.table.push(tensor)?)
    }

    fn delete_tensor(&mut self, tensor: Resource<Tensor>) -> wasmtime::Result<Tensor> {
        let tensor = self.table.delete(tensor)?;
        self.ctx.used.tensor_bytes -= tensor.data.len();
        Ok(tensor)
    }
}

impl tensor::Host for NnView<'_> {}

impl tensor::HostTensor for NnView<'_> {
    fn new(
        &mut self,
        dimensions: Vec<u32>,
        ty: tensor::TensorType,
        data: Vec<u8>,
    ) -> wasmtime::Result<Resource<Tensor>> {
        self.push_tensor(Tensor::new(dimensions, ty.into(), data))
    }

    fn dimensions(&mut self, tensor: Resource<Tensor>) -> wasmtime::Result<Vec<u32>> {
        Ok(self.table.get(&tensor)?.dimensions.clone())
    }

    fn ty(&mut self, tensor: Resource<Tensor>) -> wasmtime::Result<tensor::TensorType> {
        Ok(self.table.get(&tensor)?.element.into())
    }

    fn data(&mut self, tensor: Resource<Tensor>) -> wasmtime::Result<Vec<u8>> {
        // Shadowed by `share_data`.
        Ok(self.table.get(&tensor)?.data.to_vec())
    }

    fn drop(&mut self, tensor: Resource<Tensor>) -> wasmtime::Result<()> {
        self.delete_tensor(tensor).map(drop)
    }
}

impl graph::Host for NnView<'_> {
    fn load(
        &mut self,
        _: Vec<Vec<u8>>,
        _: graph::GraphEncoding,
        _: graph::ExecutionTarget,
    ) -> wasmtime::Result<Result<Resource<Graph>, Resource<NnError>>> {
        let error = NnError::unsupported("models are loaded by name here, not from bytes");
        self.result(Err(error))
    }

    fn load_by_name(
        &mut self,
        name: String,
    ) -> wasmtime::Result<Result<Resource<Graph>, Resource<NnError>>> {
        match self.ctx.registry.load(&name, &self.ctx.allowed) {
            Ok(graph) => Ok(Ok(self.table.push(graph)?)),
            Err(error) => self.result(Err(error)),
        }
    }
}

impl graph::HostGraph for NnView<'_> {
    fn init_execution_context(
        &mut self,
        graph: Resource<Graph>,
    ) -> wasmtime::Result<Result<Resource<ExecutionContext>, Resource<NnError>>> {
        if self.ctx.used.contexts == MOST_CONTEXTS {
            let error = format!("an instance holds at most {MOST_CONTEXTS} execution contexts");
            return self.result(Err(NnError::too_large(error)));
        }
        let (component, arrival) = (self.ctx.component.clone(), self.ctx.arrival.take());
        let context = self.table.get(&graph)?.init_context(component, self.ctx.came, arrival);
        self.ctx.used.contexts += 1;
        Ok(Ok(self.table.push(context)?))
    }

    fn drop(&mut self, graph: Resource<Graph>) -> wasmtime::Result<()> {
        self.table.delete(graph)?;
        Ok(())
    }
}

impl inference::Host for NnView<'_> {}

impl inference::HostGraphExecutionContext for NnView<'_> {
    async fn compute(
        &mut self,
        context: Resource<ExecutionContext>,
        inputs: Vec<(String, Resource<Tensor>)>,
    ) -> wasmtime::Result<Result<Vec<(String, Resource<Tensor>)>, Resource<NnError>>> {
        self.ctx.observer.begins();
        self.ctx.used.ticks = 0;
        let inputs = inputs
            .into_iter()
            .map(|(name, tensor)| Ok((name, self.delete_tensor(tensor)?)))
            .collect::<wasmtime::Result<Vec<_>>>()?;
        let inputs: Vec<_> = inputs.iter().map(|(name, tensor)| (name.clone(), tensor)).collect();
        let outputs = self.table.get_mut(&context)?.compute(&inputs).await;
        self.ctx.observer.ended();
        match outputs {
            Ok(outputs) => outputs
                .into_iter()
                .map(|(name, tensor)| Ok((name, self.push_tensor(tensor)?)))
                .collect::<wasmtime::Result<_>>()
                .map(Ok),
            Err(error) => self.result(Err(error)),
        }
    }

    fn drop(&mut self, context: Resource<ExecutionContext>) -> wasmtime::Result<()> {
        self.table.delete(context)?;
        self.ctx.used.contexts -= 1;
        Ok(())
    }
}

impl errors::Host for NnView<'_> {}

impl errors::HostError for NnView<'_> {
    fn code(&mut self, error: Resource<NnError>) -> wasmtime::Result<errors::ErrorCode> {
        Ok(self.table.get(&error)?.code.into())
    }

    fn data(&mut self, error: Resource<NnError>) -> wasmtime::Result<String> {
        Ok(self.table.get(&error)?.message.clone())
    }

    fn drop(&mut self, error: Resource<NnError>) -> wasmtime::Result<()> {
        self.table.delete(error)?;
        Ok(())
    }
}

impl From<tensor::TensorType> for Element {
    fn from(ty: tensor::TensorType) -> Self {
        match ty {
            tensor::TensorType::Fp16 => Self::Fp16,
            tensor::TensorType::Fp32 => Self::Fp32,
            tensor::TensorType::Fp64 => Self::Fp64,
            tensor::TensorType::Bf16 => Self::Bf16,
            tensor::TensorType::U8 => Self::U8,
            tensor::TensorType::I32 => Self::I32,
            tensor::TensorType::I64 => Self::I64,
        }
    }
}

impl From<Element> for tensor::TensorType {
    fn from(element: Element) -> Self {
        match element {
            Element::Fp16 => Self::Fp16,
            Element::Fp32 => Self::Fp32,
            Element::Fp64 => Self::Fp64,
            Element::Bf16 => Self::Bf16,
            Element::U8 => Self::U8,
            Element::I32 => Self::I32,
            Element::I64 => Self::I64,
        }
    }
}

impl From<NnErrorCode> for errors::ErrorCode {
    fn from(code: NnErrorCode) -> Self {
        match code {
            NnErrorCode::InvalidArgument => Self::InvalidArgument,
            NnErrorCode::Timeout => Self::Timeout,
            NnErrorCode::RuntimeError => Self::RuntimeError,
            NnErrorCode::UnsupportedOperation => Self::UnsupportedOperation,
            NnErrorCode::TooLarge => Self::TooLarge,
            NnErrorCode::NotFound => Self::NotFound,
            NnErrorCode::Security => Self::Security,
        }
    }
}
