//! Shell commands that change a network's file. The commands use sed or, if sed could change too
//! much, open an editor.

use node::Source;
use serde_json::Value;

use super::finding::{Finding, quoted};

/// Returns a command that renames `key` to `name` in the file `place`: the first match on each
/// line.
pub fn rename(place: &str, key: &str, name: &str) -> String {
    sed(&pattern(key), &replacement(&json(name)), place)
}

/// Returns a command that changes a key's value in the file `place` from `from` to `to`.
pub fn set(place: &str, key: &str, [from, to]: [&str; 2]) -> String {
    let member = format!("{}: {}", json(key), json(to));
    sed(&met_by(key, from), &replacement(&member), place)
}

/// Returns `finding` with a fix that adds a key with this value to the plugin's object. If the
/// object already has the key, or a sed pattern would not match exactly this plugin, the fix is to
/// open the file and write the key.
pub fn give(finding: Finding, source: Source<'_>, key: &str, value: &Value) -> Finding {
    let place = source.place();
    let program = &source.plugin.program;
    let added = format!("{}: {value}", json(key));
    // Each item is the text after one `"type":` in the file. If several items begin with this
    // plugin's name, a sed command would change all these plugins.
    let types = source.network.text.split("\"type\":").skip(1);
    let of_program = types.filter(|it| it.trim_start_matches(' ').starts_with(&json(program)));
    let mut keys = source.plugin.config.keys();
    if of_program.count() == 1 && !keys.any(|it| it.eq_ignore_ascii_case(key)) {
        let by = format!("&, {}", replacement(&added));
        return finding.fix(sed(&met_by("type", program), &by, &place));
    }
    let impact = format!("{} Write {added} for {program}.", finding.impact);
    finding.impact(impact).fix(open(&place))
}

/// Returns a command that opens the file `place` in an editor.
pub fn open(place: &str) -> String {
    format!("vi {}", quoted(place))
}

/// Returns a sed command that replaces the first match on each line.
fn sed(pattern: &str, replacement: &str, place: &str) -> String {
    let script = format!("s|{pattern}|{replacement}|");
    format!("sed -i {} {}", quoted(&script), quoted(place))
}

/// Returns a sed pattern that matches the key with this string value.
fn met_by(key: &str, value: &str) -> String {
    format!("{}: *{}", pattern(key), pattern(value))
}

/// Returns a sed pattern that matches exactly this JSON string.
fn pattern(text: &str) -> String {
    escaped(&json(text), r"\|.*[]^$")
}

/// Returns a sed replacement that inserts exactly `text`.
fn replacement(text: &str) -> String {
    escaped(text, r"\|&")
}

fn escaped(text: &str, special: &str) -> String {
    let escape = |c: char| special.contains(c).then_some('\\');
    let escaped = text.chars().flat_map(|c| escape(c).into_iter().chain([c]));
    escaped.collect()
}

fn json(text: &str) -> String {
    Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::node;
    use super::*;

    fn given(plugins: &str) -> Finding {
        let list = format!(r#"{{"name": "pods", "plugins": [{plugins}]}}"#);
        let node = node(&[("pods.conflist", &list)]);
        let source = node.configuration.sources().next().unwrap();
        let finding = Finding::problem("").impact("It gets nothing.");
        give(finding, source, "a", &json!("x|y & z"))
    }

    #[test]
    fn key_is_written_by_sed_where_it_meets_one_plugin() {
        let finding = given(r#"{"type": "portmap"}, {"type": "bandwidth"}"#);
        assert_eq!(
            finding.fix,
            r#"sed -i 's|"type": *"portmap"|&, "a": "x\|y \& z"|' /etc/cni/net.d/pods.conflist"#
        );
        assert_eq!(finding.impact, "It gets nothing.");
    }

    #[test]
    fn key_is_written_by_people_where_sed_would_meet_more() {
        for plugins in [
            r#"{"type": "portmap"}, {"type": "portmap"}"#,
            r#"{"type": "portmap", "A": null}"#,
            r#"{"type" : "portmap"}"#,
        ] {
            let finding = given(plugins);
            assert_eq!(finding.fix, "vi /etc/cni/net.d/pods.conflist", "{plugins}");
            let impact = r#"It gets nothing. Write "a": "x|y & z" for portmap."#;
            assert_eq!(finding.impact, impact);
        }
    }

    #[test]
    fn texts_are_met_and_written_as_they_are() {
        assert_eq!(
            set("/a b", "cniVersion", ["1.0", "it's"]),
            r#"sed -i 's|"cniVersion": *"1\.0"|"cniVersion": "it'\''s"|' '/a b'"#
        );
        assert_eq!(rename("/a", "x*", "y"), r#"sed -i 's|"x\*"|"y"|' /a"#);
    }
}
