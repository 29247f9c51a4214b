//! The locked application: what `spin up` makes of an application and hands to the trigger's program, as
//! a JSON file. Components and files have been fetched, and dependencies are still to be composed with what
//! depends on them.
//!
//! Fields that nobody here knows say nothing, as the format wants it, except in `must_understand`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use serde::Deserialize;
use serde_json::Value;

use super::dependency::{Configuration, Dependency, DependencyName};
use super::files::Files;
use super::manifest::RouteValue;
use super::source::{Source, sha256};
use super::{Declaration, DeclaredComponent, TRIGGER, Trigger};

/// What of a locked application must be understood, and is.
const UNDERSTOOD: [&str; 1] = ["component_host_requirements"];

/// Reads the file. Gives the application, and where it comes from, for errors.
pub(super) fn read(path: &Path) -> anyhow::Result<(Declaration, String)> {
    let read = || anyhow::Ok(serde_json::from_slice::<Locked>(&std::fs::read(path)?)?);
    let locked = read().with_context(|| format!("can't read the locked app {}", path.display()))?;
    let manifest = locked.metadata.origin.as_deref().and_then(|origin| file_path(origin).ok());
    // One from a registry has no folder of its own; relative paths are the user's then.
    let folder = manifest.as_deref().and_then(Path::parent).unwrap_or(Path::new(".")).to_owned();
    let origin = manifest.as_deref().unwrap_or(path).display().to_string();
    let context = format!("in {origin}");
    Ok((locked.declaration(folder).context(context)?, origin))
}

/// The path of a `file:` URL, in which bytes may be percent-encoded.
pub(super) fn file_path(url: &str) -> anyhow::Result<PathBuf> {
    let path = url.strip_prefix("file://").with_context(|| format!("{url:?} is no file: URL"))?;
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let hex = |at: usize| char::from(*after.get(at)?).to_digit(16);
        match (byte, hex(0), hex(1)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push((high * 16 + low) as u8);
                rest = &after[2..];
            }
            _ => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    Ok(PathBuf::from(String::from_utf8(bytes).with_context(|| format!("{url:?} is not UTF-8"))?))
}

#[derive(Deserialize)]
struct Locked {
    #[serde(default)]
    must_understand: Vec<String>,
    metadata: Metadata,
    #[serde(default)]
    host_requirements: BTreeMap<String, Value>,
    #[serde(default)]
    variables: BTreeMap<String, LockedVariable>,
    triggers: Vec<LockedTrigger>,
    components: Vec<LockedComponent>,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
    origin: Option<String>,
}

#[derive(Deserialize)]
struct LockedVariable {
    default: Option<String>,
}

#[derive(Deserialize)]
struct LockedTrigger {
    id: String,
    trigger_type: String,
    trigger_config: Value,
}

/// The table `[[trigger.http-nn]]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table with a route and a component")]
struct TriggerConfig {
    #[serde(rename = "id")]
    _id: Option<String>,
    route: RouteValue,
    component: String,
}

#[derive(Deserialize)]
struct LockedComponent {
    id: String,
    #[serde(default)]
    metadata: ComponentMetadata,
    source: Content,
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default)]
    files: Vec<LockedFiles>,
    #[serde(default)]
    config: BTreeMap<String, String>,
    #[serde(default)]
    dependencies: BTreeMap<String, LockedDependency>,
    #[serde(default)]
    trigger_dependencies: BTreeMap<String, Value>,
    #[serde(default)]
    host_requirements: BTreeMap<String, Value>,
}

#[derive(Deserialize)]
struct LockedDependency {
    source: Content,
    export: Option<String>,
    #[serde(default)]
    inherit: Inherit,
}

#[derive(Deserialize)]
enum Inherit {
    All,
    Some(BTreeSet<Configuration>),
}

#[derive(Default, Deserialize)]
struct ComponentMetadata {
    #[serde(default)]
    ai_models: BTreeSet<String>,
    #[serde(default)]
    allowed_outbound_hosts: Vec<String>,
    #[serde(default)]
    key_value_stores: Vec<String>,
    #[serde(default)]
    databases: Vec<String>,
}

#[derive(Deserialize)]
struct Content {
    source: Option<String>,
    digest: Option<String>,
}

#[derive(Deserialize)]
struct LockedFiles {
    #[serde(flatten)]
    content: Content,
    path: String,
}

impl Locked {
    fn declaration(self, folder: PathBuf) -> anyhow::Result<Declaration> {
        if let Some(unknown) =
            self.must_understand.iter().find(|name| !UNDERSTOOD.contains(&name.as_str()))
        {
            bail!("it needs {unknown:?}, which this version of spinfer doesn't know");
        }
        if let Some(required) = required(&self.host_requirements).next() {
            bail!("it requires {required:?}, which isn't supported here");
        }
        let ours = self.triggers.into_iter().filter(|trigger| trigger.trigger_type == TRIGGER);
        let triggers = ours
            .map(|LockedTrigger { id, trigger_config, .. }| {
                let config: TriggerConfig = serde_json::from_value(trigger_config)
                    .with_context(|| format!("the trigger {id:?}"))?;
                Ok(Trigger { route: config.route.into_route()?, component: config.component })
            })
            .collect::<anyhow::Result<_>>()?;
        let components = self
            .components
            .into_iter()
            .map(|component| {
                let id = component.id.clone();
                let declared = component.declared().with_context(|| format!("component {id:?}"))?;
                Ok((id, declared))
            })
            .collect::<anyhow::Result<_>>()?;
        let variables =
            self.variables.into_iter().map(|(name, variable)| (name, variable.default)).collect();
        Ok(Declaration { name: self.metadata.name, folder, variables, triggers, components })
    }
}

/// What is required and not merely wished for.
fn required(requirements: &BTreeMap<String, Value>) -> impl Iterator<Item = &String> {
    requirements.iter().filter(|(_, value)| *value == "required").map(|(name, _)| name)
}

impl LockedComponent {
    fn declared(self) -> anyhow::Result<DeclaredComponent> {
        let names = [
            ("key_value_stores", !self.metadata.key_value_stores.is_empty()),
            ("sqlite_databases", !self.metadata.databases.is_empty()),
            ("trigger_dependencies", !self.trigger_dependencies.is_empty()),
        ];
        let unsupported = names.into_iter().filter(|(_, used)| *used).map(|(name, _)| name);
        let unsupported = unsupported.chain(required(&self.host_requirements).map(String::as_str));
        let files = self.files.into_iter().map(|files| {
            let source = files.content.path().context("files")?;
            ensure!(source.is_dir(), "files: {} is no folder", source.display());
            Ok(Files::Placed { source, destination: files.path })
        });
        let dependencies = self.dependencies.into_iter().map(|(name, dependency)| {
            dependency.read(&name).with_context(|| format!("dependency {name:?}"))
        });
        Ok(DeclaredComponent {
            unsupported: unsupported.map(str::to_owned).collect(),
            source: self.source.source().context("source")?,
            dependencies: dependencies.collect::<anyhow::Result<_>>()?,
            environment: self.env,
            variables: self.config,
            files: files.collect::<anyhow::Result<_>>()?,
            exclude_files: Vec::new(),
            direct_mounts: true,
            ai_models: self.metadata.ai_models,
            allowed_hosts: self.metadata.allowed_outbound_hosts,
        })
    }
}

impl LockedDependency {
    fn read(self, name: &str) -> anyhow::Result<Dependency> {
        Ok(Dependency {
            name: DependencyName::parse(name)?,
            source: self.source.source()?,
            export: self.export,
            inherits: match self.inherit {
                Inherit::All => Configuration::ALL.into(),
                Inherit::Some(inherits) => inherits,
            },
        })
    }
}

impl Default for Inherit {
    fn default() -> Self {
        Self::Some(BTreeSet::new())
    }
}

impl Content {
    fn source(&self) -> anyhow::Result<Source> {
        let sha256 = self.digest.as_deref().map(sha256).transpose()?;
        Ok(Source::File { path: self.path()?, sha256 })
    }

    fn path(&self) -> anyhow::Result<PathBuf> {
        let url = self.source.as_deref().context("there is no file, only a digest")?;
        file_path(url)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{App, VariableSources};
    use super::*;

    /// As `spin up` writes it, with what is given for the component's other keys.
    fn locked(folder: &Path, more: Value) -> Value {
        let mut component = json!({
            "id": "app",
            "metadata": {
                "ai_models": ["m"],
                "allowed_outbound_hosts": ["http://127.0.0.1:8080"],
                "build": {"command": "true"},
                "description": "the app"
            },
            "source": {"content_type": "application/wasm", "source": "file:///srv/my%20app/app.wasm"},
            "env": {"FOO": "bar"},
            "files": [{"source": format!("file://{}", folder.display()), "path": "/"}],
            "config": {"greeting": "{{ greeting }}", "key": "{{ api_key }}"},
            "dependencies": {
                "a:b/c@1.0.0": {"source": {"source": "file:///srv/one.wasm"}, "export": "x"},
                "d:e": {"source": {"source": "file:///srv/two.wasm"}, "inherit": "All"},
                "f": {"source": {"source": "file:///srv/three.wasm"}, "inherit": {"Some": ["files"]}}
            }
        });
        component.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({
            "spin_lock_version": 1,
            "must_understand": ["component_host_requirements"],
            "metadata": {
                "name": "demo-app",
                "origin": "file:///srv/my%20app/spin.toml",
                "trigger": {"type": "http-nn"},
                "version": "0.1.0"
            },
            "variables": {"api_key": {"secret": true}, "greeting": {"default": "hi"}},
            "triggers": [
                {
                    "id": "t1",
                    "trigger_type": "http-nn",
                    "trigger_config": {"component": "app", "route": "/..."}
                },
                {"id": "r", "trigger_type": "redis", "trigger_config": {"component": "other"}}
            ],
            "components": [
                component,
                {"id": "other", "source": {"source": "file:///srv/other.wasm"}}
            ]
        })
    }

    fn load(locked: &Value) -> anyhow::Result<App> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), locked.to_string()).unwrap();
        let url = format!("file://{}", file.path().display());
        let given = [("api_key".to_owned(), "k".to_owned())];
        let sources = VariableSources::new(given, &[], Path::new(""), &[]).unwrap();
        App::load_locked(&url, &sources)
    }

    #[test]
    fn what_spin_writes_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let app = load(&locked(folder.path(), json!({}))).unwrap();
        assert_eq!((app.name.as_str(), app.origin.as_str()), ("demo-app", "/srv/my app/spin.toml"));
        assert_eq!(app.folder, Path::new("/srv/my app"));
        assert_eq!(app.components.keys().collect::<Vec<_>>(), ["app"]);
        let component = &app.components["app"];
        assert_eq!(component.source, Source::of_file("/srv/my app/app.wasm".into()));
        assert_eq!(component.variables["greeting"], "hi");
        assert_eq!(component.variables["key"], "k");
        assert_eq!(component.environment["FOO"], "bar");
        assert!(component.allowed_hosts.allow("http", "127.0.0.1", 8080));
        assert!(component.direct_mounts && component.ai_models.contains("m"));
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
            component.dependencies,
            [
                dependency("a:b/c@1.0.0", "/srv/one.wasm", Some("x"), &[]),
                dependency("d:e", "/srv/two.wasm", None, &Configuration::ALL),
                dependency("f", "/srv/three.wasm", None, &[Configuration::Files]),
            ]
        );
        assert_eq!(
            component.files,
            [Files::Placed { source: folder.path().into(), destination: "/".into() }]
        );
    }

    #[test]
    fn what_is_not_supported_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let of = |more| locked(folder.path(), more);
        let edited = |pointer: &str, value: Value| {
            let mut locked = of(json!({}));
            *locked.pointer_mut(pointer).unwrap() = value;
            locked
        };
        for (locked, words) in [
            (edited("/must_understand", json!(["new_things"])), &["new_things"] as &[_]),
            (
                edited("/triggers/0/trigger_config/route", json!({"x": 1})),
                &["t1", "a route must be"],
            ),
            (edited("/triggers/0/trigger_config", json!({"route": "/"})), &["t1", "component"]),
            (
                of(json!({"host_requirements": {"local_service_chaining": "required"}})),
                &["app", "chaining"],
            ),
            (of(json!({"dependencies": {"a:b": {}}})), &["source"]),
            (
                of(json!({"dependencies": {"a b": {"source": {"source": "file:///d.wasm"}}}})),
                &["app", "a b"],
            ),
            (
                of(json!({"dependencies": {"a:b": {"source": {"digest": "sha256:00"}}}})),
                &["app", "a:b", "sha256:00"],
            ),
            (of(json!({"trigger_dependencies": {"m": []}})), &["app", "trigger_dependencies"]),
            (of(json!({"metadata": {"databases": ["default"]}})), &["app", "sqlite_databases"]),
            (of(json!({"source": {"digest": "sha256:00"}})), &["app", "source"]),
            (
                of(json!({"files": [{"source": "file:///nowhere", "path": "/"}]})),
                &["app", "/nowhere"],
            ),
        ] {
            let error = format!("{:#}", load(&locked).unwrap_err());
            for word in words {
                assert!(error.contains(word), "{word:?} is not in {error:?}");
            }
        }
    }

    #[test]
    fn urls_of_files_are_paths() {
        assert_eq!(file_path("file:///a%20b/%C3%A4").unwrap(), Path::new("/a b/\u{e4}"));
        assert_eq!(file_path("file:///a%2").unwrap(), Path::new("/a%2"));
        assert!(file_path("https://a").is_err() && file_path("file:///%FF").is_err());
    }
}
