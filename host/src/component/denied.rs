//! What dependencies find behind imports whose configuration they don't inherit: functions that refuse, in
//! the way of their own results where these have one, else by ending the instance.

use wasmtime::component::types::{ComponentFunc, ComponentInstance, ComponentItem};
use wasmtime::component::{Component, Linker, ResourceType, Type, Val};
use wasmtime::{Engine, bail};

use super::compose::DENIED;
use crate::app::dependency::Configuration;

/// Cases of errors that say that something isn't allowed, the best first.
const REFUSALS: [&str; 5] =
    ["access-denied", "access", "HTTP-request-denied", "undefined", "other"];

/// A resource of a denied interface, of which there is none.
enum Denied {}

/// Defines the denied imports of a component.
pub fn add_to_linker<T: 'static>(
    linker: &mut Linker<T>,
    engine: &Engine,
    component: &Component,
) -> wasmtime::Result<()> {
    let ty = component.component_type();
    // A resource that an interface only uses is that of whoever has it, and is defined there.
    let mut defined: Vec<ResourceType> = ty
        .imports(engine)
        .filter(|(import, _)| !import.starts_with(DENIED))
        .flat_map(|(_, item)| match item.ty {
            ComponentItem::ComponentInstance(interface) => resources(&interface, engine),
            _ => Vec::new(),
        })
        .collect();
    for (import, item) in ty.imports(engine) {
        let (Some(name), ComponentItem::ComponentInstance(interface)) =
            (import.strip_prefix(DENIED), item.ty)
        else {
            continue;
        };
        let Some(configuration) = Configuration::behind(name) else { continue };
        let reason = format!(
            "the dependency may not use {name}: its inherit_configuration doesn't list {:?}",
            configuration.name()
        );
        let mut instance = linker.instance(import)?;
        for (name, item) in interface.exports(engine) {
            match item.ty {
                ComponentItem::Resource(resource) if defined.contains(&resource) => {}
                ComponentItem::Resource(resource) => {
                    defined.push(resource);
                    instance.resource(name, ResourceType::host::<Denied>(), |_, _| Ok(()))?;
                }
                ComponentItem::ComponentFunc(function) => {
                    let reason = reason.clone();
                    if function.async_() {
                        instance.func_new_concurrent(name, move |_, function, _, results| {
                            let refused = refuse(&function, results, &reason);
                            Box::pin(async move { refused })
                        })?;
                    } else {
                        instance.func_new(name, move |_, function, _, results| {
                            refuse(&function, results, &reason)
                        })?;
                    }
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// The resources of an interface, its own and those that it uses.
fn resources(interface: &ComponentInstance, engine: &Engine) -> Vec<ResourceType> {
    let exports = interface.exports(engine).filter_map(|(_, item)| match item.ty {
        ComponentItem::Resource(resource) => Some(resource),
        _ => None,
    });
    exports.collect()
}

/// Writes results that refuse, or gives an error.
fn refuse(function: &ComponentFunc, results: &mut [Val], reason: &str) -> wasmtime::Result<()> {
    for (result, ty) in results.iter_mut().zip(function.results()) {
        match refusal(&ty, reason) {
            Some(value) => *result = value,
            None => bail!("{reason}"),
        }
    }
    if results.is_empty() { bail!("{reason}") } else { Ok(()) }
}

/// Nothing, or an error.
fn refusal(ty: &Type, reason: &str) -> Option<Val> {
    match ty {
        Type::List(_) => Some(Val::List(Vec::new())),
        Type::Option(_) => Some(Val::Option(None)),
        Type::Result(result) => {
            let error = match result.err() {
                Some(ty) => Some(Box::new(error(&ty, reason)?)),
                None => None,
            };
            Some(Val::Result(Err(error)))
        }
        _ => None,
    }
}

/// An error of that type that says that something isn't allowed, if it can.
fn error(ty: &Type, reason: &str) -> Option<Val> {
    match ty {
        Type::String => Some(Val::String(reason.to_owned())),
        Type::Enum(cases) => REFUSALS
            .into_iter()
            .find(|refusal| cases.names().any(|name| name == *refusal))
            .map(|refusal| Val::Enum(refusal.to_owned())),
        Type::Variant(cases) => REFUSALS.into_iter().find_map(|refusal| {
            let case = cases.cases().find(|case| case.name == refusal)?;
            let payload = match case.ty {
                None => None,
                Some(Type::String) => Some(Box::new(Val::String(reason.to_owned()))),
                Some(Type::Option(_)) => Some(Box::new(Val::Option(None))),
                Some(_) => return None,
            };
            Some(Val::Variant(refusal.to_owned(), payload))
        }),
        _ => None,
    }
}
