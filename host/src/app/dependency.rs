//! What components depend on: other components, which give them some of their imports.

use std::collections::BTreeSet;
use std::fmt;

use anyhow::ensure;
use serde::Deserialize;

use super::source::Source;

/// A component that gives another some of its imports.
#[derive(Debug, Clone, PartialEq)]
pub struct Dependency {
    /// Which imports.
    pub name: DependencyName,
    /// Its Wasm.
    pub source: Source,
    /// Which of its exports is given for the import, if it isn't the one of the import's name.
    pub export: Option<String>,
    /// What of the component's configuration it has too.
    pub inherits: BTreeSet<Configuration>,
}

/// Names imports of a component, as the keys of `[component.<id>.dependencies]` do.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum DependencyName {
    /// The import of just that name.
    Plain(String),
    /// `namespace:package/interface@version`: interfaces of a package.
    Package {
        /// With its namespace.
        package: String,
        /// None: all.
        interface: Option<String>,
        /// None: any.
        version: Option<String>,
    },
}

/// What a component is configured with, as `inherit_configuration` lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Configuration {
    /// Models that it may use.
    AiModels,
    /// Hosts that it may connect to.
    AllowedOutboundHosts,
    /// Its environment.
    Environment,
    /// Its files.
    Files,
    /// Its key-value stores, which no component has here.
    KeyValueStores,
    /// Its databases, which no component has here.
    SqliteDatabases,
    /// Its variables.
    Variables,
}

impl DependencyName {
    /// Reads a name.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let wrong = || {
            format!(
                "the dependency {text:?} must be an import's name, or namespace:package with \
                 /interface and @version if wanted"
            )
        };
        let (name, version) = split(text, '@');
        let (package, interface) = split(name, '/');
        let Some((namespace, name)) = package.split_once(':') else {
            ensure!(is_label(text), wrong());
            return Ok(Self::Plain(text.to_owned()));
        };
        ensure!(
            [Some(namespace), Some(name), interface].into_iter().flatten().all(is_label)
                && version.is_none_or(|version| !version.is_empty()),
            wrong()
        );
        let [interface, version] = [interface, version].map(|part| part.map(str::to_owned));
        Ok(Self::Package { package: package.to_owned(), interface, version })
    }

    /// Whether it names that import.
    pub fn names(&self, import: &str) -> bool {
        match self {
            Self::Plain(name) => name == import,
            Self::Package { package, interface, version } => {
                let (name, imported_version) = split(import, '@');
                let (imported_package, imported_interface) = split(name, '/');
                let same = |wanted: &Option<String>, imported: Option<&str>| {
                    wanted.as_deref().is_none_or(|wanted| imported == Some(wanted))
                };
                package == imported_package
                    && same(interface, imported_interface)
                    && same(version, imported_version)
            }
        }
    }
}

impl fmt::Display for DependencyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(name) => f.write_str(name),
            Self::Package { package, interface, version } => {
                f.write_str(package)?;
                interface.iter().try_for_each(|interface| write!(f, "/{interface}"))?;
                version.iter().try_for_each(|version| write!(f, "@{version}"))
            }
        }
    }
}

fn split(text: &str, at: char) -> (&str, Option<&str>) {
    match text.split_once(at) {
        Some((before, after)) => (before, Some(after)),
        None => (text, None),
    }
}

/// Whether it is a word, or words with hyphens between them.
fn is_label(text: &str) -> bool {
    let is_word = |word: &str| {
        word.starts_with(|first: char| first.is_ascii_alphabetic())
            && word.chars().all(|char| char.is_ascii_alphanumeric())
    };
    text.split('-').all(is_word)
}

impl Configuration {
    /// All of it.
    pub const ALL: [Self; 7] = [
        Self::AiModels,
        Self::AllowedOutboundHosts,
        Self::Environment,
        Self::Files,
        Self::KeyValueStores,
        Self::SqliteDatabases,
        Self::Variables,
    ];

    /// What the interface `import` gives access to; none if there is nothing in it that is configured.
    ///
    /// Interfaces that are of use only with what another has given (an open file, a socket) are none.
    pub fn behind(import: &str) -> Option<Self> {
        let (name, _version) = split(import, '@');
        let (package, interface) = split(name, '/');
        Some(match (package, interface?) {
            ("wasi:cli", "environment") => Self::Environment,
            ("wasi:filesystem", "preopens") => Self::Files,
            ("wasi:http", "outgoing-handler" | "client")
            | (
                "wasi:sockets",
                "tcp-create-socket" | "udp-create-socket" | "ip-name-lookup" | "types",
            ) => Self::AllowedOutboundHosts,
            ("spin:variables", _) | ("fermyon:spin", "variables") => Self::Variables,
            ("wasi:nn", "graph") => Self::AiModels,
            _ => return None,
        })
    }

    /// Its name in `inherit_configuration`.
    pub fn name(self) -> &'static str {
        match self {
            Self::AiModels => "ai_models",
            Self::AllowedOutboundHosts => "allowed_outbound_hosts",
            Self::Environment => "environment",
            Self::Files => "files",
            Self::KeyValueStores => "key_value_stores",
            Self::SqliteDatabases => "sqlite_databases",
            Self::Variables => "variables",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_name_imports() {
        for (name, import, expected) in [
            ("greeter", "greeter", true),
            ("greeter", "greeter2", false),
            ("greeter", "a:greeter/greeter", false),
            ("a:b", "a:b/c", true),
            ("a:b", "a:b/c@1.0.0", true),
            ("a:b", "a:bb/c", false),
            ("a:b@1.0.0", "a:b/c@1.0.0", true),
            ("a:b@1.0.0", "a:b/c@1.0.1", false),
            ("a:b@1.0.0", "a:b/c", false),
            ("a:b/c", "a:b/c@1.0.0", true),
            ("a:b/c", "a:b/d@1.0.0", false),
            ("a:b/c-d@0.2.0-rc-2024-10-28", "a:b/c-d@0.2.0-rc-2024-10-28", true),
        ] {
            let parsed = DependencyName::parse(name).unwrap();
            assert_eq!(parsed.names(import), expected, "{name} {import}");
            assert_eq!(parsed.to_string(), name);
        }
        for wrong in ["", "a b", "a:", ":b", "a:b/", "a:b@", "a:b/c d", "-a", "a-", "a@1", "a/b"] {
            let error = DependencyName::parse(wrong).unwrap_err().to_string();
            assert!(error.contains(&format!("{wrong:?}")), "{error}");
        }
    }

    #[test]
    fn interfaces_are_guarded_by_what_configures_them() {
        for (import, expected) in [
            ("wasi:cli/environment@0.2.6", Some(Configuration::Environment)),
            ("wasi:cli/environment@0.3.0", Some(Configuration::Environment)),
            ("wasi:filesystem/preopens@0.2.0", Some(Configuration::Files)),
            ("wasi:filesystem/types@0.2.0", None),
            ("wasi:sockets/tcp-create-socket@0.2.0", Some(Configuration::AllowedOutboundHosts)),
            ("wasi:sockets/types@0.3.0", Some(Configuration::AllowedOutboundHosts)),
            ("wasi:sockets/tcp@0.2.0", None),
            ("wasi:http/client@0.3.0", Some(Configuration::AllowedOutboundHosts)),
            ("wasi:http/types@0.2.0", None),
            ("spin:variables/variables@3.0.0", Some(Configuration::Variables)),
            ("wasi:nn/graph@0.2.0-rc-2024-10-28", Some(Configuration::AiModels)),
            ("environment", None),
        ] {
            assert_eq!(Configuration::behind(import), expected, "{import}");
        }
        for configuration in Configuration::ALL {
            let name = serde_json::Value::String(configuration.name().into());
            assert_eq!(serde_json::from_value::<Configuration>(name).unwrap(), configuration);
        }
    }
}
