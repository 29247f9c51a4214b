//! Graphs and their execution contexts.

use crate::bindings::wasi::nn::{graph as raw, inference};
use crate::{Error, Tensor};

/// A loaded model.
#[derive(Debug)]
pub struct Graph(raw::Graph);

impl Graph {
    /// The graph that the host knows by this name.
    pub fn by_name(name: &str) -> Result<Self, Error> {
        Ok(Self(raw::load_by_name(name)?))
    }

    /// A new, empty execution context.
    pub fn execution_context(&self) -> Result<ExecutionContext, Error> {
        Ok(ExecutionContext(self.0.init_execution_context()?))
    }
}

/// The state of one computation over a graph.
#[derive(Debug)]
pub struct ExecutionContext(inference::GraphExecutionContext);

impl ExecutionContext {
    /// Runs the graph on the inputs. Nothing else in this instance runs until it returns.
    pub fn compute(&mut self, inputs: Vec<(&str, Tensor)>) -> Result<Outputs, Error> {
        let inputs = inputs
            .into_iter()
            .map(|(name, tensor)| (name.to_owned(), tensor.0))
            .collect::<Vec<_>>();
        let outputs = self.0.compute(inputs)?;
        Ok(Outputs(outputs.into_iter().map(|(name, tensor)| (name, Tensor(tensor))).collect()))
    }
}

/// What a computation returned, by name.
#[derive(Debug)]
pub struct Outputs(Vec<(String, Tensor)>);

impl Outputs {
    /// The output of that name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.0.iter().find(|(output, _)| output == name).map(|(_, tensor)| tensor)
    }

    /// The names of all outputs.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }
}
