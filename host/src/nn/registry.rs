//! The models by name, and which of them a component may use.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use super::ggml::{GgmlContext, GgmlGraph};
use super::metrics::{ModelMetrics, TokenClock};
use super::openvino::{OpenvinoContext, OpenvinoGraph};
use super::{Arrival, Arrivals, NamedTensor, NnError};

/// A loaded model.
#[derive(Clone)]
pub struct Graph {
    backend: Backend,
    metrics: ModelMetrics,
}

/// What computes a model.
#[derive(Clone)]
pub enum Backend {
    /// llama.cpp.
    Ggml(Arc<GgmlGraph>),
    /// OpenVINO.
    Openvino(Arc<OpenvinoGraph>),
}

impl Graph {
    /// A model and where it is counted.
    pub fn new(backend: Backend, metrics: ModelMetrics) -> Self {
        Self { backend, metrics }
    }

    /// An empty batch of sequences of that component, for a request that came then, and that has
    /// arrived when the batch computes, if it hasn't yet.
    pub fn init_context(
        &self,
        component: Arc<str>,
        came: Instant,
        arrival: Option<Arrival>,
    ) -> ExecutionContext {
        let context = match &self.backend {
            Backend::Ggml(graph) => BackendContext::Ggml(graph.init_context(component, arrival)),
            Backend::Openvino(graph) => {
                BackendContext::Openvino(graph.init_context(arrival).into())
            }
        };
        ExecutionContext { context, clock: TokenClock::new(self.metrics.clone(), came) }
    }
}

/// A batch of sequences of one request. Dropping it frees what it holds.
pub struct ExecutionContext {
    context: BackendContext,
    clock: TokenClock,
}

enum BackendContext {
    Ggml(GgmlContext),
    Openvino(Box<OpenvinoContext>),
}

impl ExecutionContext {
    /// Computes one call of the convention. Waiting holds no thread; dropping the future cancels.
    pub async fn compute(
        &mut self,
        inputs: &[(String, &super::Tensor)],
    ) -> Result<Vec<NamedTensor>, NnError> {
        self.clock.resume();
        let outputs = match &mut self.context {
            BackendContext::Ggml(context) => context.compute(inputs).await,
            BackendContext::Openvino(context) => context.compute(inputs).await,
        }?;
        if !outputs.is_empty() {
            self.clock.tick();
        }
        Ok(outputs)
    }
}

/// The models of this process by id.
#[derive(Clone, Default)]
pub struct Registry {
    graphs: Arc<BTreeMap<String, Graph>>,
    arrivals: Arrivals,
}

impl Registry {
    /// A registry of the given models, and of the requests that will ask for one.
    pub fn new(graphs: impl IntoIterator<Item = (String, Graph)>, arrivals: Arrivals) -> Self {
        Self { graphs: Arc::new(graphs.into_iter().collect()), arrivals }
    }

    /// The requests that have come, and will soon ask for a model.
    pub fn arrivals(&self) -> &Arrivals {
        &self.arrivals
    }

    /// The model of that id, if the component may use it. A model outside `allowed` is refused
    /// before it is looked up, so that a component can't find out which others there are.
    pub fn load(&self, id: &str, allowed: &BTreeSet<String>) -> Result<Graph, NnError> {
        if !allowed.contains(id) {
            return Err(NnError::security(format!(
                "this component may not use a model {id:?}; its ai_models in spin.toml lists those that it may"
            )));
        }
        self.graphs
            .get(id)
            .cloned()
            .ok_or_else(|| NnError::not_found(format!("there is no model {id:?}")))
    }
}
