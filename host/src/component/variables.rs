//! The variables of a component: `spin:variables`, and `fermyon:spin/variables` of components of WASI 0.2.

use std::collections::BTreeMap;
use std::sync::Arc;

use wasmtime::component::{Accessor, HasData, Linker};

mod bindings {
    wasmtime::component::bindgen!({
        path: "../wit/spin-variables.wit",
        world: "imports",
    });
}

mod older {
    wasmtime::component::bindgen!({
        path: "../wit/fermyon-spin-variables.wit",
        world: "imports",
    });
}

use bindings::spin::variables::variables as current;
use older::fermyon::spin::variables as former;

/// State that has a component's variables in it.
pub trait VariablesState: Send + 'static {
    /// The view of it.
    fn variables(&mut self) -> VariablesView<'_>;
}

/// The values of a component's variables, by name.
pub struct VariablesView<'a>(pub &'a Arc<BTreeMap<String, String>>);

impl VariablesView<'_> {
    /// The value, or a sentence that says that there is none.
    fn value(&self, name: &str) -> Result<String, String> {
        self.0.get(name).cloned().ok_or_else(|| format!("the component has no variable {name:?}"))
    }
}

struct HasVariables;

impl HasData for HasVariables {
    type Data<'a> = VariablesView<'a>;
}

/// Gives components their variables.
pub fn add_to_linker<T: VariablesState>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    current::add_to_linker::<T, HasVariables>(linker, T::variables)?;
    former::add_to_linker::<T, HasVariables>(linker, T::variables)
}

impl current::Host for VariablesView<'_> {}

impl<T: 'static> current::HostWithStore<T> for HasVariables {
    async fn get(accessor: &Accessor<T, Self>, name: String) -> Result<String, current::Error> {
        accessor.with(|mut access| access.get().value(&name)).map_err(current::Error::Undefined)
    }
}

impl former::Host for VariablesView<'_> {
    fn get(&mut self, name: String) -> Result<String, former::Error> {
        self.value(&name).map_err(former::Error::Undefined)
    }
}
