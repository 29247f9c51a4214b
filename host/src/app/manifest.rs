//! `spin.toml`, version 2 of Spin's manifest: the parts that this host serves.
//!
//! What it doesn't serve is an error that names the component and the key, never ignored.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use serde::Deserialize;

use super::dependency::{Configuration, Dependency, DependencyName};
use super::files::Files;
use super::source::{Source, sha256};
use super::{Declaration, DeclaredComponent, TRIGGER, Trigger};
use crate::toml_file;

/// Reads the file.
pub(super) fn read(path: &Path) -> anyhow::Result<Declaration> {
    let manifest: Manifest = toml_file::read(path, "the application")?;
    let folder = match path.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    manifest.declaration(folder).with_context(|| format!("in {}", path.display()))
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
    #[serde(default)]
    required: bool,
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
    route: RouteValue,
    component: String,
}

/// A route, or that there is none.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a route must be a text, or { private = true }")]
pub(super) enum RouteValue {
    Route(String),
    Private { private: bool },
}

impl RouteValue {
    pub(super) fn into_route(self) -> anyhow::Result<Option<String>> {
        match self {
            Self::Route(route) => Ok(Some(route)),
            Self::Private { private: true } => Ok(None),
            Self::Private { private: false } => bail!("a route with `private` must have it true"),
        }
    }
}

/// `[component.<id>]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ComponentTable {
    source: SourceValue,
    #[serde(default)]
    environment: BTreeMap<String, String>,
    #[serde(default)]
    variables: BTreeMap<String, String>,
    #[serde(default)]
    files: Vec<FilesValue>,
    #[serde(default)]
    exclude_files: Vec<String>,
    #[serde(default)]
    ai_models: BTreeSet<String>,
    #[serde(default)]
    allowed_outbound_hosts: Vec<String>,
    #[serde(default)]
    allowed_http_hosts: Vec<String>,
    #[serde(default)]
    key_value_stores: Vec<String>,
    #[serde(default)]
    sqlite_databases: Vec<String>,
    #[serde(default)]
    dependencies: BTreeMap<String, DependencyValue>,
    dependencies_inherit_configuration: Option<bool>,
    #[serde(default, rename = "description")]
    _description: Option<String>,
    #[serde(default, rename = "build")]
    _build: Option<toml::Value>,
    #[serde(default, rename = "tool")]
    _tool: Option<toml::Value>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a source must be the path of a file, or a table")]
enum SourceValue {
    Path(PathBuf),
    Elsewhere(BTreeMap<String, String>),
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a dependency must be a table with a path, or with a component")]
enum DependencyValue {
    /// Of a component in the registry.
    Version(String),
    Table(DependencyTable),
}

#[derive(Deserialize)]
struct DependencyTable {
    path: Option<PathBuf>,
    component: Option<String>,
    export: Option<String>,
    inherit_configuration: Option<Inherit>,
    #[serde(flatten)]
    more: BTreeMap<String, toml::Value>,
}

/// What of the component's configuration a dependency has too.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "inherit_configuration must be true, false or a list of what to inherit"
)]
enum Inherit {
    All(bool),
    Some(BTreeSet<Configuration>),
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "files must be patterns, or tables with a source and a destination")]
enum FilesValue {
    Pattern(String),
    Placed { source: PathBuf, destination: String },
}

impl Manifest {
    fn declaration(self, folder: PathBuf) -> anyhow::Result<Declaration> {
        ensure!(
            self.spin_manifest_version == 2,
            "spin_manifest_version is {}, but must be 2",
            self.spin_manifest_version
        );
        for (name, table) in &self.variables {
            ensure!(
                table.required != table.default.is_some(),
                "the variable {name:?} must have a default or be required, and not both"
            );
        }
        let variables =
            self.variables.into_iter().map(|(name, table)| (name, table.default)).collect();
        let mut triggers = Vec::new();
        for (kind, tables) in self.trigger {
            ensure!(
                kind == TRIGGER,
                "the trigger type {kind:?} is not served; only {TRIGGER:?} is, also for components that \
                 use no models"
            );
            for TriggerTable { route, component, .. } in tables {
                triggers.push(Trigger { route: route.into_route()?, component });
            }
        }
        let in_component = |id: &str| format!("component {id:?}");
        let sources = self
            .component
            .iter()
            .map(|(id, table)| {
                let source = table.source.read(&folder).with_context(|| in_component(id))?;
                Ok((id.clone(), source))
            })
            .collect::<anyhow::Result<_>>()?;
        let components = self
            .component
            .into_iter()
            .map(|(id, table)| {
                let component =
                    table.declared(&id, &folder, &sources).with_context(|| in_component(&id))?;
                Ok((id, component))
            })
            .collect::<anyhow::Result<_>>()?;
        Ok(Declaration { name: self.application.name, folder, variables, triggers, components })
    }
}

impl ComponentTable {
    /// The component `id`, in an application with those sources of components.
    fn declared(
        self,
        id: &str,
        folder: &Path,
        sources: &BTreeMap<String, Source>,
    ) -> anyhow::Result<DeclaredComponent> {
        let names = [
            (
                "allowed_http_hosts (use allowed_outbound_hosts)",
                !self.allowed_http_hosts.is_empty(),
            ),
            ("key_value_stores", !self.key_value_stores.is_empty()),
            ("sqlite_databases", !self.sqlite_databases.is_empty()),
        ];
        let unsupported = names.into_iter().filter(|(_, used)| *used);
        let files = self.files.into_iter().map(|entry| match entry {
            FilesValue::Pattern(pattern) => Files::Pattern(pattern),
            FilesValue::Placed { source, destination } => Files::Placed { source, destination },
        });
        let all_inherit = self.dependencies_inherit_configuration;
        let dependencies = self.dependencies.into_iter().map(|(name, value)| {
            let read = value.read(&name, folder, sources, all_inherit);
            read.with_context(|| format!("dependency {name:?}"))
        });
        Ok(DeclaredComponent {
            source: sources[id].clone(),
            dependencies: dependencies.collect::<anyhow::Result<_>>()?,
            environment: self.environment,
            variables: self.variables,
            files: files.collect(),
            exclude_files: self.exclude_files,
            direct_mounts: false,
            ai_models: self.ai_models,
            allowed_hosts: self.allowed_outbound_hosts,
            unsupported: unsupported.map(|(name, _)| name.to_owned()).collect(),
        })
    }
}

impl DependencyValue {
    fn read(
        self,
        name: &str,
        folder: &Path,
        sources: &BTreeMap<String, Source>,
        all_inherit: Option<bool>,
    ) -> anyhow::Result<Dependency> {
        let elsewhere = |key: &str| {
            format!(
                "`{key}` isn't supported here; give the path of a file, or a component of this application"
            )
        };
        let table = match self {
            Self::Version(version) => bail!(elsewhere(&format!("version = {version:?}"))),
            Self::Table(table) => table,
        };
        if let Some(key) = table.more.keys().next() {
            bail!(elsewhere(key));
        }
        let source = match (table.path, table.component) {
            (Some(path), None) => Source::of_file(folder.join(path)),
            (None, Some(component)) => sources
                .get(&component)
                .with_context(|| format!("there is no component {component:?}"))?
                .clone(),
            _ => bail!("there must be a path or a component, and not both"),
        };
        let inherits = match (table.inherit_configuration, all_inherit) {
            (None, all) => Inherit::All(all.unwrap_or(false)),
            (Some(own), None) => own,
            (Some(_), Some(_)) => bail!(
                "inherit_configuration can't be given beside the component's \
                 dependencies_inherit_configuration"
            ),
        };
        Ok(Dependency {
            name: DependencyName::parse(name)?,
            source,
            export: table.export,
            inherits: match inherits {
                Inherit::All(true) => Configuration::ALL.into(),
                Inherit::All(false) => BTreeSet::new(),
                Inherit::Some(inherits) => inherits,
            },
        })
    }
}

impl SourceValue {
    fn read(&self, folder: &Path) -> anyhow::Result<Source> {
        let table = match self {
            Self::Path(path) => return Ok(Source::of_file(folder.join(path))),
            Self::Elsewhere(table) => table,
        };
        if let Some(key) =
            table.keys().find(|key| !["path", "url", "digest"].contains(&key.as_str()))
        {
            bail!(
                "source: `{key}` isn't supported here; give the path of a file, or a table with its path \
                 or its URL and its digest"
            );
        }
        let sha256 = table.get("digest").map(|digest| sha256(digest)).transpose()?;
        match (table.get("path"), table.get("url"), sha256) {
            (Some(path), None, sha256) => Ok(Source::File { path: folder.join(path), sha256 }),
            (None, Some(url), Some(sha256)) => {
                let is_web = url.starts_with("https://") || url.starts_with("http://");
                ensure!(is_web, "source: the URL {url:?} must be https or http");
                Ok(Source::Url { url: url.clone(), sha256 })
            }
            (None, Some(url), None) => bail!("source: the URL {url:?} needs a digest beside it"),
            _ => bail!("source: there must be a path or a url, and not both"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{App, VariableSources};
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
        [[trigger.http-nn]]
        route = { private = true }
        component = "d"
        [component.a]
        source = "a.wasm"
        ai_models = ["m"]
        [component.a.variables]
        text = "{{ greeting }} {{ key }}"
        [component.b]
        source = "b.wasm"
        files = ["static/*", { source = "assets", destination = "/assets" }]
        exclude_files = ["static/secret"]
        allowed_outbound_hosts = ["https://{{ greeting }}.example.org"]
        [component.c]
        source = "c.wasm"
        environment = { A = "1" }
        [component.c.dependencies]
        "a:b/c@1.0.0" = { path = "one.wasm", export = "x", inherit_configuration = ["files"] }
        "d:e" = { component = "d" }
        plain = { path = "two.wasm", inherit_configuration = true }
        [component.d]
        source = "d.wasm"
        key_value_stores = ["default"]
    "#;

    fn sources(variables: &[(&str, &str)]) -> VariableSources {
        let owned = variables.iter().map(|(a, b)| (a.to_string(), b.to_string()));
        VariableSources::new(owned, &[], Path::new(""), &[]).unwrap()
    }

    fn parse(text: &str, sources: &VariableSources) -> anyhow::Result<App> {
        let manifest: Manifest = toml_file::parse(text)?;
        App::resolve(manifest.declaration("/app".into())?, "spin.toml".into(), sources)
    }

    #[test]
    fn the_most_specific_route_wins() {
        let app = parse(MANIFEST, &sources(&[("key", "k")])).unwrap();
        let component = |path| app.route(path).map(|found| found.route.component.as_str());
        assert_eq!(component("/v1/exact"), Some("b"));
        assert_eq!(component("/v1/exact/"), Some("b"));
        assert_eq!(component("/v1/exact/more"), Some("c"));
        assert_eq!(component("/v1"), Some("c"));
        assert_eq!(component("/v1x"), Some("a"));
        assert_eq!(component("/"), Some("a"));
    }

    #[test]
    fn variables_have_values_and_templates_are_filled_in() {
        let text = |variables: &[(&str, &str)]| {
            parse(MANIFEST, &sources(variables)).unwrap().components["a"].variables["text"].clone()
        };
        assert_eq!(text(&[("key", "k")]), "hi k");
        assert_eq!(text(&[("key", "k"), ("greeting", "yo")]), "yo k");
        let app = parse(MANIFEST, &sources(&[("key", "k")])).unwrap();
        assert!(app.components["b"].allowed_hosts.allow("https", "hi.example.org", 443));
    }

    #[test]
    fn what_a_component_is_given_is_read() {
        let app = parse(MANIFEST, &sources(&[("key", "k")])).unwrap();
        let b = &app.components["b"];
        let placed = Files::Placed { source: "assets".into(), destination: "/assets".into() };
        assert_eq!(b.files, [Files::Pattern("static/*".into()), placed]);
        assert_eq!(b.exclude_files, ["static/secret"]);
        assert_eq!(b.source, Source::of_file("/app/b.wasm".into()));
        assert_eq!(app.components["c"].environment["A"], "1");
        // Nobody reaches d, so what it needs doesn't matter.
        assert_eq!(app.private, ["d".to_owned()].into());
        let sha256 = "ab".repeat(32);
        let url = "https://example.org/b.wasm".to_owned();
        for (place, source) in [
            (
                "path = \"b.wasm\"",
                Source::File { path: "/app/b.wasm".into(), sha256: Some(sha256.clone()) },
            ),
            ("url = \"https://example.org/b.wasm\"", Source::Url { url, sha256 }),
        ] {
            let table = format!("source = {{ {place}, digest = \"sha256:{}\" }}", "aB".repeat(32));
            let manifest = MANIFEST.replace("source = \"b.wasm\"", &table);
            let app = parse(&manifest, &sources(&[("key", "k")])).unwrap();
            assert_eq!(app.components["b"].source, source);
        }
    }

    #[test]
    fn dependencies_have_sources_and_inherit_what_is_listed() {
        let components = |manifest: &str| {
            parse(manifest, &sources(&[("key", "k")])).unwrap().components.remove("c").unwrap()
        };
        let dependency = |name, path: &str, export: Option<&str>, inherits: &[Configuration]| {
            let source = Source::of_file(path.into());
            Dependency {
                name: DependencyName::parse(name).unwrap(),
                source,
                export: export.map(str::to_owned),
                inherits: inherits.iter().copied().collect(),
            }
        };
        assert_eq!(
            components(MANIFEST).dependencies,
            [
                dependency("a:b/c@1.0.0", "/app/one.wasm", Some("x"), &[Configuration::Files]),
                dependency("d:e", "/app/d.wasm", None, &[]),
                dependency("plain", "/app/two.wasm", None, &Configuration::ALL),
            ]
        );
        let all = MANIFEST
            .replace(", inherit_configuration = [\"files\"]", "")
            .replace(", inherit_configuration = true", "")
            .replace(
                "environment = {",
                "dependencies_inherit_configuration = true\nenvironment = {",
            );
        let inherits = components(&all).dependencies.into_iter().map(|found| found.inherits);
        assert!(inherits.into_iter().all(|inherits| inherits == Configuration::ALL.into()));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let with_key = sources(&[("key", "k")]);
        let error = |from: &str, to: &str| {
            assert!(MANIFEST.contains(from), "{from}");
            format!("{:#}", parse(&MANIFEST.replace(from, to), &with_key).unwrap_err())
        };
        let missing = format!("{:#}", parse(MANIFEST, &sources(&[])).unwrap_err());
        assert!(missing.contains("\"key\" is required"), "{missing}");
        let unknown = sources(&[("key", "k"), ("typo", "t")]);
        assert!(format!("{:#}", parse(MANIFEST, &unknown).unwrap_err()).contains("\"typo\""));
        for (from, to, words) in [
            ("version = 2", "version = 1", &["must be 2"] as &[_]),
            ("trigger.http-nn", "trigger.redis", &["redis", "http-nn"]),
            ("{{ key }}", "{{ kee }}", &["component \"a\"", "variable \"text\"", "\"kee\""]),
            ("component = \"b\"", "component = \"z\"", &["/v1/exact", "\"z\""]),
            (
                "exclude_files =",
                "exclude_file =",
                &["line 29", "`exclude_file`", "`exclude_files`"],
            ),
            ("/v1/exact", "/v1/...", &["\"/v1/...\"", "the same"]),
            (
                "route = { private = true }",
                "route = \"/d\"",
                &["component \"d\"", "key_value_stores"],
            ),
            ("{ private = true }", "{ private = false }", &["private"]),
            ("default = \"hi\"", "default = \"hi\", required = true", &["greeting", "not both"]),
            ("required = true, secret", "secret", &["key", "default or be required"]),
            (
                "source = \"b.wasm\"",
                "source = { registry = \"u\", digest = \"d\" }",
                &["\"b\"", "`registry`"],
            ),
            (
                "source = \"b.wasm\"",
                "source = { url = \"https://u\" }",
                &["\"b\"", "needs a digest"],
            ),
            ("source = \"b.wasm\"", "source = {}", &["\"b\"", "a path or a url"]),
            (
                "source = \"b.wasm\"",
                "source = { path = \"p\", url = \"u\" }",
                &["\"b\"", "a path or a url"],
            ),
            (
                "source = \"b.wasm\"",
                "source = { path = \"p\", digest = \"d\" }",
                &["\"b\"", "\"d\""],
            ),
            ("source = \"b.wasm\"", "source = 3", &["a source must be"]),
            ("destination = \"/assets\"", "to = \"/assets\"", &["files must be"]),
            ("https://{{", "{{", &["component \"b\"", "hi.example.org"]),
            (
                "ai_models = [\"m\"]",
                "ai_models = [\"m\"]\ndependencies = { \"a:b\" = \"c\" }",
                &["component \"a\"", "\"a:b\"", "`version = \"c\"`"],
            ),
            ("component = \"d\" }", "component = \"z\" }", &["\"d:e\"", "no component \"z\""]),
            ("component = \"d\" }", "export = \"d\" }", &["\"d:e\"", "a path or a component"]),
            ("component = \"d\" }", "registry = \"r\" }", &["\"d:e\"", "`registry`"]),
            ("\"a:b/c@1.0.0\"", "\"a:b/\"", &["component \"c\"", "\"a:b/\"", "namespace"]),
            ("[\"files\"]", "[\"filez\"]", &["a dependency must be"]),
            (
                "environment = {",
                "dependencies_inherit_configuration = true\nenvironment = {",
                &["dependencies_inherit_configuration", "beside"],
            ),
            (
                "ai_models = [\"m\"]",
                "ai_models = [\"m\"]\nfiles = [{ source = \"x\", destination = \"/models/x\" }]",
                &["component \"a\"", "/models"],
            ),
        ] {
            let error = error(from, to);
            for word in words {
                assert!(error.contains(word), "{word:?} is not in {error:?}");
            }
            assert!(!error.contains('\n'), "{error}");
        }
    }
}
