//! `spin:variables` for a component.

use std::collections::BTreeMap;
use std::sync::Arc;

use wasmtime::component::{Accessor, HasData, Linker};

mod bindings {
    wasmtime::component::bindgen!({
        path: "../wit/spin-variables.wit",
        world: "imports",
    });
}

use bindings::spin::variables::variables::{Error, Host, HostWithStore, add_to_linker as add};

/// State that has a component's variables in it.
pub trait VariablesState: Send + 'static {
    /// The view of it.
    fn variables(&mut self) -> VariablesView<'_>;
}

/// The values of a component's variables, by name.
pub struct VariablesView<'a>(pub &'a Arc<BTreeMap<String, String>>);

struct HasVariables;

impl HasData for HasVariables {
    type Data<'a> = VariablesView<'a>;
}

/// Gives components their variables.
pub fn add_to_linker<T: VariablesState>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    add::<T, HasVariables>(linker, T::variables)
}

impl Host for VariablesView<'_> {}

impl<T: 'static> HostWithStore<T> for HasVariables {
    async fn get(accessor: &Accessor<T, Self>, name: String) -> Result<String, Error> {
        accessor.with(|mut access| {
            let VariablesView(values) = access.get();
            values
                .get(&name)
                .cloned()
                .ok_or_else(|| Error::Undefined(format!("the component has no variable {name:?}")))
        })
    }
}
