//! The models by name, and which of them a component may use.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::ggml::{GgmlContext, GgmlGraph};
use super::{NamedTensor, NnError};

/// A loaded model, whatever computes it.
#[derive(Clone)]
pub enum Graph {
    /// llama.cpp.
    Ggml(Arc<GgmlGraph>),
}

impl Graph {
    /// An empty batch of sequences of that component.
    pub fn init_context(&self, component: Arc<str>) -> ExecutionContext {
        match self {
            Self::Ggml(graph) => ExecutionContext::Ggml(graph.init_context(component)),
        }
    }
}

/// A batch of sequences of one request. Dropping it frees what it holds.
pub enum ExecutionContext {
    /// llama.cpp.
    Ggml(GgmlContext),
}

impl ExecutionContext {
    /// Computes one call of the convention. Waiting holds no thread; dropping the future cancels.
    pub async fn compute(
        &mut self,
        inputs: &[(String, &super::Tensor)],
    ) -> Result<Vec<NamedTensor>, NnError> {
        match self {
            Self::Ggml(context) => context.compute(inputs).await,
        }
    }
}

/// The models of this process by id.
#[derive(Clone, Default)]
pub struct Registry {
    graphs: Arc<BTreeMap<String, Graph>>,
}

impl Registry {
    /// A registry of the given models.
    pub fn new(graphs: impl IntoIterator<Item = (String, Graph)>) -> Self {
        Self { graphs: Arc::new(graphs.into_iter().collect()) }
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
