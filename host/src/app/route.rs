//! Routes: which component answers which paths.

use std::cmp::Ordering;

use anyhow::ensure;

/// Which paths a component answers: `/exact`, `/users/:id`, `/below/...`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// As the manifest has it.
    pub pattern: String,
    segments: Vec<Segment>,
    /// Whether paths below it are its own too.
    wildcard: bool,
    /// The component's id.
    pub component: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Segment {
    Literal(String),
    /// Any text, which goes by this name.
    Parameter(String),
}

/// A route that answers a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Matched<'route, 'path> {
    /// The route.
    pub route: &'route Route,
    /// What of the path is below the route, with its leading `/`.
    pub rest: &'path str,
    /// The texts of the route's parameters, by their names.
    pub parameters: Vec<(&'route str, &'path str)>,
}

impl Route {
    /// Reads a pattern.
    pub fn parse(pattern: &str, component: &str) -> anyhow::Result<Self> {
        let (path, wildcard) = match pattern.strip_suffix("/...") {
            Some(path) => (path, true),
            None => (pattern, false),
        };
        ensure!(
            (path.is_empty() && wildcard) || path.starts_with('/'),
            "the route {pattern:?} must start with /"
        );
        let path = path.trim_end_matches('/');
        let segments = path.split('/').skip(1).map(|segment| match segment.strip_prefix(':') {
            Some(name) => {
                ensure!(!name.is_empty(), "the route {pattern:?} has a parameter without a name");
                Ok(Segment::Parameter(name.to_owned()))
            }
            None => {
                ensure!(
                    !segment.is_empty() && segment != "...",
                    "the route {pattern:?}: `...` stands only at the end, and no part is empty"
                );
                Ok(Segment::Literal(segment.to_owned()))
            }
        });
        Ok(Self {
            pattern: pattern.to_owned(),
            segments: segments.collect::<anyhow::Result<_>>()?,
            wildcard,
            component: component.to_owned(),
        })
    }

    /// The pattern without `/...`.
    pub fn base(&self) -> &str {
        self.pattern.strip_suffix("/...").unwrap_or(&self.pattern)
    }

    /// Whether the route answers that path, of a URL, and how.
    pub fn matches<'path>(&self, path: &'path str) -> Option<Matched<'_, 'path>> {
        let mut rest = path;
        let mut parameters = Vec::new();
        for segment in &self.segments {
            let after = rest.strip_prefix('/')?;
            let (found, below) = after.split_at(after.find('/').unwrap_or(after.len()));
            match segment {
                Segment::Literal(literal) if literal == found => {}
                Segment::Parameter(name) if !found.is_empty() => parameters.push((&**name, found)),
                _ => return None,
            }
            rest = below;
        }
        let ends = matches!(rest, "" | "/");
        (ends || (self.wildcard && rest.starts_with('/'))).then_some(Matched {
            route: self,
            rest,
            parameters,
        })
    }

    /// Of two routes that answer the same path, the more specific one comes first: literal text before
    /// parameters, these before an end, and that before `/...`.
    pub fn by_specificity(&self, other: &Self) -> Ordering {
        let ranks = |route: &Self| {
            let segments = route.segments.iter().map(|segment| match segment {
                Segment::Literal(_) => 0,
                Segment::Parameter(_) => 1,
            });
            segments.chain([if route.wildcard { 3 } else { 2 }]).collect::<Vec<u8>>()
        };
        ranks(self).cmp(&ranks(other))
    }

    /// Whether both answer the same paths.
    pub fn is_like(&self, other: &Self) -> bool {
        let alike = |(a, b): (&Segment, &Segment)| match (a, b) {
            (Segment::Literal(a), Segment::Literal(b)) => a == b,
            (Segment::Parameter(_), Segment::Parameter(_)) => true,
            _ => false,
        };
        self.wildcard == other.wildcard
            && self.segments.len() == other.segments.len()
            && self.segments.iter().zip(&other.segments).all(alike)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(pattern: &str) -> Route {
        Route::parse(pattern, "c").unwrap()
    }

    #[test]
    fn the_rest_and_the_parameters_are_found() {
        let matched = |pattern: &str, path: &str| {
            let route = route(pattern);
            let found = route.matches(path)?;
            let owned = |(name, text): &(&str, &str)| format!("{name}={text}");
            Some((found.rest.to_owned(), found.parameters.iter().map(owned).collect::<Vec<_>>()))
        };
        let rest = |pattern, path| matched(pattern, path).map(|(rest, _)| rest);
        assert_eq!(rest("/...", "/"), Some("/".into()));
        assert_eq!(rest("/...", "/a/b"), Some("/a/b".into()));
        assert_eq!(rest("/a/...", "/a"), Some("".into()));
        assert_eq!(rest("/a/...", "/a/"), Some("/".into()));
        assert_eq!(rest("/a/...", "/a/b/c"), Some("/b/c".into()));
        assert_eq!(rest("/a/...", "/ab"), None);
        assert_eq!(rest("/a", "/a"), Some("".into()));
        assert_eq!(rest("/a", "/a/"), Some("/".into()));
        assert_eq!(rest("/a", "/a/b"), None);
        assert_eq!(rest("/", "/"), Some("/".into()));
        assert_eq!(rest("/", "/a"), None);
        assert_eq!(
            matched("/u/:id/x/:y", "/u/7/x/z"),
            Some(("".into(), vec!["id=7".into(), "y=z".into()]))
        );
        assert_eq!(rest("/u/:id", "/u/"), None);
        assert_eq!(rest("/u/:id", "/u"), None);
        assert_eq!(rest("/a", "*"), None);
    }

    #[test]
    fn the_most_specific_comes_first() {
        let mut routes: Vec<_> =
            ["/...", "/:any", "/a/...", "/a", "/a/:x", "/a/b", "/a/b/...", "/a/:x/c"]
                .into_iter()
                .map(route)
                .collect();
        routes.sort_by(Route::by_specificity);
        let first = |path| {
            routes.iter().find(|route| route.matches(path).is_some()).unwrap().pattern.as_str()
        };
        assert_eq!(first("/a"), "/a");
        assert_eq!(first("/z"), "/:any");
        assert_eq!(first("/a/b"), "/a/b");
        assert_eq!(first("/a/b/c"), "/a/b/...");
        assert_eq!(first("/a/z"), "/a/:x");
        assert_eq!(first("/a/z/c"), "/a/:x/c");
        assert_eq!(first("/a/z/d"), "/a/...");
        assert_eq!(first("/y/z"), "/...");
    }

    #[test]
    fn what_is_no_route_is_refused() {
        for wrong in ["", "a", "a/...", "/a/.../b", "/...b/...c/.../x", "/a//b", "/:", "/:/a"] {
            assert!(Route::parse(wrong, "c").is_err(), "{wrong}");
        }
        assert!(route("/:a/b").is_like(&route("/:x/b/")));
        assert!(!route("/:a/b").is_like(&route("/a/b")) && !route("/a").is_like(&route("/a/...")));
    }
}
