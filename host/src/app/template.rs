//! Spin's templates: text with `{{ variable }}` in it.

use std::collections::BTreeMap;

/// Fills in the variables. `Err` names the one that is unknown, or says what is malformed.
pub fn expand(template: &str, values: &BTreeMap<String, String>) -> Result<String, String> {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(open) = rest.find("{{") {
        out.push_str(&rest[..open]);
        let after = &rest[open + 2..];
        let close =
            after.find("}}").ok_or_else(|| format!("{template:?} has {{{{ without }}}}"))?;
        let name = after[..close].trim();
        let value = values.get(name).ok_or_else(|| format!("there is no variable {name:?}"))?;
        out.push_str(value);
        rest = &after[close + 2..];
    }
    out.push_str(rest);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_filled_in_once() {
        let values = BTreeMap::from([
            ("host".to_owned(), "example.com".to_owned()),
            ("odd".to_owned(), "{{ host }}".to_owned()),
        ]);
        assert_eq!(
            expand("a {{ host }}:{{host}} b", &values).unwrap(),
            "a example.com:example.com b"
        );
        assert_eq!(expand("{{ odd }}", &values).unwrap(), "{{ host }}");
        assert_eq!(expand("{ } plain", &values).unwrap(), "{ } plain");
        assert!(expand("{{ port }}", &values).unwrap_err().contains("port"));
        assert!(expand("{{ host", &values).unwrap_err().contains("without"));
    }
}
