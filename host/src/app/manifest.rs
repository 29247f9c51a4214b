//! `spin.toml`, version 2 of Spin's manifest: the parts that this host serves.
//!
//! What it doesn't serve is an error that names the component and the key, never ignored.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use serde::Deserialize;

use super::VariableSources;
use super::template;

/// The trigger type of components that are given `wasi:nn`.
const TRIGGER: &str = "http-nn";

/// An application, ready to be served.
#[derive(Debug, Clone, PartialEq)]
pub struct App {
    /// Its name.
    pub name: String,
    /// The folder of `spin.toml`.
    pub folder: PathBuf,
    /// Its components, by id, as far as a route leads to them.
    pub components: BTreeMap<String, Component>,
    /// The routes, the most specific first.
    pub routes: Vec<Route>,
}

/// A component.
#[derive(Debug, Clone, PartialEq)]
pub struct Component {
    /// Its file.
    pub source: PathBuf,
    /// Its environment.
    pub environment: BTreeMap<String, String>,
    /// Its variables, by name, with their values.
    pub variables: BTreeMap<String, String>,
    /// The ids of the models that it may use.
    pub ai_models: BTreeSet<String>,
}

/// Which paths a component answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The path without a trailing `/...`.
    pub path: String,
    /// Whether paths below it are its own too.
    pub wildcard: bool,
    /// The component's id.
    pub component: String,
}

impl Route {
    fn parse(route: &str, component: &str) -> anyhow::Result<Self> {
        let (path, wildcard) = match route.strip_suffix("/...") {
            Some(path) => (path, true),
            None => (route, false),
        };
        ensure!(
            (path.is_empty() && wildcard) || path.starts_with('/'),
            "the route {route:?} must start with /"
        );
        ensure!(
            !path.contains("...") && !path.contains("/:"),
            "the route {route:?}: only exact paths and a /... at the end are served"
        );
        let path = path.trim_end_matches('/').to_owned();
        Ok(Self { path, wildcard, component: component.to_owned() })
    }

    fn matches(&self, path: &str) -> bool {
        match path.strip_prefix(self.path.as_str()) {
            Some("" | "/") => true,
            Some(rest) => self.wildcard && rest.starts_with('/'),
            None => false,
        }
    }
}

impl App {
    /// Reads `spin.toml` at `path`, or in the folder `path`.
    pub fn load(path: &Path, sources: &VariableSources) -> anyhow::Result<Self> {
        let path = if path.is_dir() { path.join("spin.toml") } else { path.to_owned() };
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("can't read the application {}", path.display()))?;
        let folder = match path.parent() {
            Some(parent) if parent != Path::new("") => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        Self::parse(&text, &folder, sources).with_context(|| format!("in {}", path.display()))
    }

    fn parse(text: &str, folder: &Path, sources: &VariableSources) -> anyhow::Result<Self> {
        let manifest: Manifest = toml::from_str(text)?;
        ensure!(
            manifest.spin_manifest_version == 2,
            "spin_manifest_version is {}, but must be 2",
            manifest.spin_manifest_version
        );
        let values = variable_values(&manifest.variables, sources)?;
        let mut routes = Vec::new();
        for (kind, triggers) in &manifest.trigger {
            ensure!(
                kind == TRIGGER,
                "the trigger type {kind:?} is not served; only {TRIGGER:?} is"
            );
            for trigger in triggers {
                ensure!(
                    manifest.component.contains_key(&trigger.component),
                    "the route {:?} leads to a component {:?} that isn't there",
                    trigger.route,
                    trigger.component
                );
                routes.push(Route::parse(&trigger.route, &trigger.component)?);
            }
        }
        ensure!(!routes.is_empty(), "there is no [[trigger.{TRIGGER}]]");
        routes.sort_by_key(|route| (std::cmp::Reverse(route.path.len()), route.wildcard));
        for pair in routes.windows(2) {
            ensure!(
                (&pair[0].path, pair[0].wildcard) != (&pair[1].path, pair[1].wildcard),
                "two triggers have the route {:?}",
                pair[0].path
            );
        }
        let used: BTreeSet<_> = routes.iter().map(|route| route.component.clone()).collect();
        let components = manifest
            .component
            .into_iter()
            .filter(|(id, _)| used.contains(id))
            .map(|(id, table)| {
                let component = table
                    .into_component(folder, &values)
                    .with_context(|| format!("component {id:?}"))?;
                Ok((id, component))
            })
            .collect::<anyhow::Result<_>>()?;
        Ok(Self { name: manifest.application.name, folder: folder.to_owned(), components, routes })
    }

    /// The route of a request's path.
    pub fn route(&self, path: &str) -> Option<&Route> {
        self.routes.iter().find(|route| route.matches(path))
    }
}

fn variable_values(
    tables: &BTreeMap<String, VariableTable>,
    sources: &VariableSources,
) -> anyhow::Result<BTreeMap<String, String>> {
    for name in sources.named() {
        ensure!(tables.contains_key(name), "the application has no variable {name:?}");
    }
    let mut values = BTreeMap::new();
    for (name, table) in tables {
        match sources.get(name).or(table.default.as_deref()) {
            Some(value) => drop(values.insert(name.clone(), value.to_owned())),
            None => bail!(
                "the variable {name:?} is required: give it with --variable {name}=… or SPIN_VARIABLE_{}",
                name.to_ascii_uppercase()
            ),
        }
    }
    Ok(values)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    spin_manifest_version: u32,
    application: ApplicationTable,
    #[serde(default)]
    variables: BTreeMap<String, VariableTable>,
    #[serde(default)]
    trigger: BTreeMap<String, Vec<TriggerTable>>,
    #[serde(default)]
    component: BTreeMap<String, ComponentTable>,
}

/// `[application]`. What it says beside the name is for people.
#[derive(Deserialize)]
struct ApplicationTable {
    name: String,
}

/// `[variables]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct VariableTable {
    default: Option<String>,
    #[serde(default, rename = "required")]
    _required: bool,
    #[serde(default, rename = "secret")]
    _secret: bool,
    #[serde(default, rename = "description")]
    _description: Option<String>,
}

/// `[[trigger.http-nn]]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TriggerTable {
    #[serde(rename = "id")]
    _id: Option<String>,
    route: String,
    component: String,
}

/// `[component.<id>]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ComponentTable {
    source: toml::Value,
    #[serde(default)]
    environment: BTreeMap<String, String>,
    #[serde(default)]
    variables: BTreeMap<String, String>,
    #[serde(default)]
    ai_models: BTreeSet<String>,
    #[serde(default)]
    allowed_outbound_hosts: Vec<String>,
    #[serde(default, rename = "description")]
    _description: Option<String>,
    #[serde(default, rename = "build")]
    _build: Option<toml::Value>,
    #[serde(default, rename = "tool")]
    _tool: Option<toml::Value>,
}

impl ComponentTable {
    fn into_component(
        self,
        folder: &Path,
        values: &BTreeMap<String, String>,
    ) -> anyhow::Result<Component> {
        let Some(source) = self.source.as_str() else {
            bail!("source must be the path of a file: others are not served");
        };
        ensure!(
            self.allowed_outbound_hosts.is_empty(),
            "allowed_outbound_hosts is not served: components open no connections here"
        );
        let variables = self
            .variables
            .into_iter()
            .map(|(name, value)| match template::expand(&value, values) {
                Ok(value) => Ok((name, value)),
                Err(reason) => bail!("variable {name:?}: {reason}"),
            })
            .collect::<anyhow::Result<_>>()?;
        Ok(Component {
            source: folder.join(source),
            environment: self.environment,
            variables,
            ai_models: self.ai_models,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = r#"
        spin_manifest_version = 2
        [application]
        name = "app"
        version = "1.0.0"
        [variables]
        greeting = { default = "hi" }
        key = { required = true, secret = true }
        [[trigger.http-nn]]
        route = "/..."
        component = "a"
        [[trigger.http-nn]]
        route = "/v1/exact"
        component = "b"
        [[trigger.http-nn]]
        route = "/v1/..."
        component = "c"
        [component.a]
        source = "a.wasm"
        ai_models = ["m"]
        [component.a.variables]
        text = "{{ greeting }} {{ key }}"
        [component.b]
        source = "b.wasm"
        [component.c]
        source = "c.wasm"
        environment = { A = "1" }
    "#;

    fn sources(variables: &[(&str, &str)], environment: &[(&str, &str)]) -> VariableSources {
        let owned = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect::<Vec<_>>()
        };
        VariableSources::new(owned(variables), owned(environment))
    }

    fn parse(text: &str, sources: &VariableSources) -> anyhow::Result<App> {
        App::parse(text, Path::new("/app"), sources)
    }

    #[test]
    fn the_most_specific_route_wins() {
        let app = parse(MANIFEST, &sources(&[("key", "k")], &[])).unwrap();
        let component = |path| app.route(path).map(|route| route.component.as_str());
        assert_eq!(component("/v1/exact"), Some("b"));
        assert_eq!(component("/v1/exact/"), Some("b"));
        assert_eq!(component("/v1/exact/more"), Some("c"));
        assert_eq!(component("/v1"), Some("c"));
        assert_eq!(component("/v1x"), Some("a"));
        assert_eq!(component("/"), Some("a"));
    }

    #[test]
    fn the_command_line_comes_before_the_environment_and_that_before_the_default() {
        let text =
            |sources| parse(MANIFEST, &sources).unwrap().components["a"].variables["text"].clone();
        assert_eq!(text(sources(&[("key", "k")], &[])), "hi k");
        assert_eq!(text(sources(&[], &[("SPIN_VARIABLE_KEY", "e"), ("KEY", "x")])), "hi e");
        assert_eq!(
            text(sources(&[("key", "k"), ("greeting", "yo")], &[("SPIN_VARIABLE_GREETING", "e")])),
            "yo k"
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        let with_key = sources(&[("key", "k")], &[]);
        let error = |text: &str| format!("{:#}", parse(text, &with_key).unwrap_err());
        let missing = format!("{:#}", parse(MANIFEST, &sources(&[], &[])).unwrap_err());
        assert!(missing.contains("\"key\" is required"), "{missing}");
        let unknown = sources(&[("key", "k"), ("typo", "t")], &[]);
        assert!(format!("{:#}", parse(MANIFEST, &unknown).unwrap_err()).contains("\"typo\""));
        assert!(error(&MANIFEST.replace("version = 2", "version = 1")).contains("must be 2"));
        assert!(error(&MANIFEST.replace("trigger.http-nn", "trigger.redis")).contains("redis"));
        assert!(error(&MANIFEST.replace("{{ key }}", "{{ kee }}")).contains("\"kee\""));
        assert!(
            error(&MANIFEST.replace("component = \"b\"", "component = \"z\"")).contains("\"z\"")
        );
        let files = MANIFEST.replace("ai_models = [\"m\"]", "files = [\"x\"]");
        assert!(error(&files).contains("unknown field `files`"), "{}", error(&files));
        let twice = MANIFEST.replace("/v1/exact", "/v1/...");
        assert!(error(&twice).contains("two triggers"));
    }
}
