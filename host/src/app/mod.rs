//! The application: what `spin.toml` says ([`manifest`]) or Spin has made of it ([`locked`]), with the
//! values of its variables, ready to be served.

pub mod dependency;
pub mod files;
mod locked;
mod manifest;
pub mod outbound;
pub mod route;
pub mod source;
mod template;
mod variables;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};

use dependency::Dependency;
use files::Files;
use outbound::AllowedHosts;
use route::{Matched, Route};
use source::Source;
pub use variables::{Provider, VariableSources};

/// The trigger type of components that are given `wasi:nn`.
pub const TRIGGER: &str = "http-nn";

/// An application, ready to be served.
#[derive(Debug, Clone, PartialEq)]
pub struct App {
    /// Its name.
    pub name: String,
    /// Where it was read from, for errors.
    pub origin: String,
    /// The folder of `spin.toml`.
    pub folder: PathBuf,
    /// Its components, by id, as far as a route leads to them.
    pub components: BTreeMap<String, Component>,
    /// The routes, the most specific first.
    pub routes: Vec<Route>,
    /// Components that only others could reach.
    pub private: BTreeSet<String>,
}

/// A component.
#[derive(Debug, Clone, PartialEq)]
pub struct Component {
    /// Its Wasm.
    pub source: Source,
    /// What gives it some of its imports.
    pub dependencies: Vec<Dependency>,
    /// Its environment.
    pub environment: BTreeMap<String, String>,
    /// Its variables, by name, with their values.
    pub variables: BTreeMap<String, String>,
    /// The files that it sees.
    pub files: Vec<Files>,
    /// Patterns of what of them it doesn't see.
    pub exclude_files: Vec<String>,
    /// Whether its files are folders that are given as they are.
    pub direct_mounts: bool,
    /// The ids of the models that it may use.
    pub ai_models: BTreeSet<String>,
    /// The hosts that it may connect to.
    pub allowed_hosts: AllowedHosts,
}

/// An application as its author declares it, in either format.
struct Declaration {
    name: String,
    folder: PathBuf,
    /// With their defaults.
    variables: BTreeMap<String, Option<String>>,
    triggers: Vec<Trigger>,
    components: BTreeMap<String, DeclaredComponent>,
}

struct Trigger {
    /// None: private.
    route: Option<String>,
    component: String,
}

/// A component whose templates are not filled in.
struct DeclaredComponent {
    source: Source,
    dependencies: Vec<Dependency>,
    environment: BTreeMap<String, String>,
    variables: BTreeMap<String, String>,
    files: Vec<Files>,
    exclude_files: Vec<String>,
    direct_mounts: bool,
    ai_models: BTreeSet<String>,
    allowed_hosts: Vec<String>,
    /// What it needs that isn't supported here, as the format names it.
    unsupported: Vec<String>,
}

impl App {
    /// Reads `spin.toml` at `path`, or in the folder `path`.
    pub fn load(path: &Path, sources: &VariableSources) -> anyhow::Result<Self> {
        let path = if path.is_dir() { path.join("spin.toml") } else { path.to_owned() };
        let declaration = manifest::read(&path)?;
        Self::resolve(declaration, path.display().to_string(), sources)
    }

    /// Reads what Spin has made of an application, at a `file:` URL.
    pub fn load_locked(url: &str, sources: &VariableSources) -> anyhow::Result<Self> {
        let (declaration, origin) = locked::read(&locked::file_path(url)?)?;
        Self::resolve(declaration, origin, sources)
    }

    fn resolve(
        declaration: Declaration,
        origin: String,
        sources: &VariableSources,
    ) -> anyhow::Result<Self> {
        let context = format!("in {origin}");
        Self::resolved(declaration, origin, sources).context(context)
    }

    fn resolved(
        declaration: Declaration,
        origin: String,
        sources: &VariableSources,
    ) -> anyhow::Result<Self> {
        let Declaration { name, folder, variables, triggers, mut components } = declaration;
        let values = values(&variables, sources)?;
        let mut routes = Vec::new();
        let mut private = BTreeSet::new();
        for Trigger { route, component } in triggers {
            ensure!(
                components.contains_key(&component),
                "the route {:?} leads to a component {component:?} that isn't there",
                route.as_deref().unwrap_or("private")
            );
            match route {
                Some(route) => routes.push(Route::parse(&route, &component)?),
                None => drop(private.insert(component)),
            }
        }
        ensure!(!routes.is_empty(), "there is no [[trigger.{TRIGGER}]] with a route");
        routes.sort_by(Route::by_specificity);
        for (at, route) in routes.iter().enumerate() {
            if let Some(other) = routes[..at].iter().find(|other| other.is_like(route)) {
                bail!("the routes {:?} and {:?} are the same", other.pattern, route.pattern);
            }
        }
        let used: BTreeSet<_> = routes.iter().map(|route| route.component.clone()).collect();
        private.retain(|id| !used.contains(id));
        components.retain(|id, _| used.contains(id));
        let components = components
            .into_iter()
            .map(|(id, declared)| {
                let component =
                    declared.fill_in(&values).with_context(|| format!("component {id:?}"))?;
                Ok((id, component))
            })
            .collect::<anyhow::Result<_>>()?;
        Ok(Self { name, origin, folder, components, routes, private })
    }

    /// The route of a request's path.
    pub fn route<'path>(&self, path: &'path str) -> Option<Matched<'_, 'path>> {
        self.routes.iter().find_map(|route| route.matches(path))
    }
}

impl DeclaredComponent {
    fn fill_in(self, values: &BTreeMap<String, String>) -> anyhow::Result<Component> {
        if let Some(unsupported) = self.unsupported.first() {
            bail!("{unsupported} isn't supported here");
        }
        let expand = |what: &str, text: &str| match template::expand(text, values) {
            Ok(text) => Ok(text),
            Err(reason) => bail!("{what}: {reason}"),
        };
        let variables = self
            .variables
            .into_iter()
            .map(|(name, text)| Ok((name.clone(), expand(&format!("variable {name:?}"), &text)?)))
            .collect::<anyhow::Result<_>>()?;
        let hosts = self
            .allowed_hosts
            .iter()
            .map(|host| expand("allowed_outbound_hosts", host))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let shadows = |entry: &Files| matches!(entry, Files::Placed { destination, .. } if Path::new(destination).starts_with(files::MODELS));
        ensure!(
            self.ai_models.is_empty() || !self.files.iter().any(shadows),
            "files: {} is where a component with ai_models sees its models",
            files::MODELS
        );
        Ok(Component {
            source: self.source,
            dependencies: self.dependencies,
            environment: self.environment,
            variables,
            files: self.files,
            exclude_files: self.exclude_files,
            direct_mounts: self.direct_mounts,
            ai_models: self.ai_models,
            allowed_hosts: AllowedHosts::parse(hosts.iter().map(String::as_str))?,
        })
    }
}

/// The values of variables, of which these have defaults.
fn values(
    variables: &BTreeMap<String, Option<String>>,
    sources: &VariableSources,
) -> anyhow::Result<BTreeMap<String, String>> {
    for name in sources.named() {
        ensure!(variables.contains_key(name), "the application has no variable {name:?}");
    }
    let mut values = BTreeMap::new();
    for (name, default) in variables {
        match sources.get(name).or(default.as_deref()) {
            Some(value) => drop(values.insert(name.clone(), value.to_owned())),
            None => bail!(
                "the variable {name:?} is required: give it with --variable {name}=… or SPIN_VARIABLE_{}",
                name.to_ascii_uppercase()
            ),
        }
    }
    Ok(values)
}
