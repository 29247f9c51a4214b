//! Composition: a component and those that it depends on, made into one component.
//!
//! The parts share the instance and what it is given. What of it is configured for the component and not
//! inherited by a dependency, the dependency imports under another name ([`DENIED`]); the host gives
//! something that refuses there ([`super::denied`]).

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, bail, ensure};
use wac_graph::types::{Package, WorldId};
use wac_graph::{CompositionGraph, EncodeOptions, NodeId};
use wasm_encoder::reencode::{ReencodeComponent, RoundtripReencoder};
use wasm_encoder::{ComponentExternName, ComponentImportSection, RawSection};
use wasmparser::{Parser, Payload};

use crate::app::dependency::{Configuration, Dependency, DependencyName};

/// Begins the names of the imports through which a dependency is refused what it doesn't inherit.
pub const DENIED: &str = "denied-";

/// Makes a component and its dependencies, each with its Wasm, into one component with the exports of the
/// first.
pub fn compose(wasm: Vec<u8>, dependencies: &[(&Dependency, Vec<u8>)]) -> anyhow::Result<Vec<u8>> {
    let mut graph = CompositionGraph::new();
    let (world, component) = instantiate(&mut graph, "component", wasm)?;
    let imports: Vec<_> = graph.types()[world].imports.keys().cloned().collect();
    let mut given: BTreeMap<&str, &DependencyName> = BTreeMap::new();
    for (at, (dependency, wasm)) in dependencies.iter().enumerate() {
        let name = &dependency.name;
        let named: Vec<_> = imports.iter().filter(|import| name.names(import)).collect();
        ensure!(
            !named.is_empty(),
            "dependency \"{name}\": the component has no such import (it has {})",
            imports.join(", ")
        );
        let in_dependency = || format!("dependency \"{name}\" ({})", dependency.source);
        let wasm = deny(wasm, &dependency.inherits).with_context(in_dependency)?;
        let (_, instance) = instantiate(&mut graph, &format!("dependency-{at}"), wasm)
            .with_context(in_dependency)?;
        for import in named {
            if let Some(other) = given.insert(import, name) {
                bail!("the dependencies \"{other}\" and \"{name}\" both give {import:?}");
            }
            let export = dependency.export.as_deref().unwrap_or(import);
            let exported = graph
                .alias_instance_export(instance, export)
                .ok()
                .with_context(|| format!("it has no export {export:?} for {import:?}"))
                .with_context(in_dependency)?;
            graph
                .set_instantiation_argument(component, import, exported)
                .with_context(|| format!("its export {export:?} doesn't fit {import:?}"))
                .with_context(in_dependency)?;
        }
    }
    let exports: Vec<_> = graph.types()[world].exports.keys().cloned().collect();
    for export in exports {
        let exported = graph.alias_instance_export(component, &export)?;
        graph.export(exported, export)?;
    }
    Ok(graph.encode(EncodeOptions::default())?)
}

fn instantiate(
    graph: &mut CompositionGraph,
    name: &str,
    wasm: Vec<u8>,
) -> anyhow::Result<(WorldId, NodeId)> {
    let package = Package::from_bytes(name, None, wasm, graph.types_mut())?;
    let world = package.ty();
    let package = graph.register_package(package)?;
    Ok((world, graph.instantiate(package)))
}

/// The component with other names for the imports that it doesn't inherit the configuration of.
fn deny(wasm: &[u8], inherits: &BTreeSet<Configuration>) -> anyhow::Result<Vec<u8>> {
    ensure!(Parser::is_component(wasm), "it is no WebAssembly component");
    let mut denied = wasm_encoder::Component::new();
    let mut depth = 0_u32;
    // Sections of components within it belong to sections that are taken over as they are.
    for payload in Parser::new(0).parse_all(wasm) {
        let payload = payload?;
        let section = (depth == 0).then(|| payload.as_section()).flatten();
        match &payload {
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) => depth = depth.saturating_sub(1),
            _ => {}
        }
        match payload {
            Payload::ComponentImportSection(imports) if depth == 0 => {
                let mut renamed = ComponentImportSection::new();
                for import in imports {
                    let import = import?;
                    let mut name = ComponentExternName::from(import.name);
                    let is_denied = Configuration::behind(&name.name)
                        .is_some_and(|configuration| !inherits.contains(&configuration));
                    if is_denied {
                        name.name = format!("{DENIED}{}", name.name).into();
                    }
                    renamed.import(name, RoundtripReencoder.component_type_ref(import.ty)?);
                }
                denied.section(&renamed);
            }
            _ => {
                if let Some((id, range)) = section {
                    denied.section(&RawSection { id, data: &wasm[range] });
                }
            }
        }
    }
    Ok(denied.finish())
}
