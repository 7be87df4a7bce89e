//! Commands that change a file of a network: by sed where it meets nothing else, by hand where it would.

use node::{Node, Source};
use serde_json::Value;

use super::finding::{Finding, quoted};

/// Calls a key otherwise, wherever it stands.
pub fn rename(place: &str, key: &str, name: &str) -> String {
    sed(&pattern(&json(key)), &replacement(&json(name)), place)
}

/// Gives a key whose value is `from` another one.
pub fn set(place: &str, key: &str, [from, to]: [&str; 2]) -> String {
    let member = format!("{}: {}", json(key), json(to));
    sed(&met_by(key, from), &replacement(&member), place)
}

/// `finding`, mended by a key with this value in the plugin's part: if it has the key already, or sed would meet
/// more than this plugin, people have to write it.
pub fn give(
    finding: Finding,
    (node, source): (&Node, Source<'_>),
    (key, value): (&str, &Value),
) -> Finding {
    let place = node.configuration.place(source.file);
    let program = &source.plugin.program;
    let added = format!("{}: {value}", json(key));
    let mut keys = source.plugin.config.keys();
    if !keys.any(|it| it.eq_ignore_ascii_case(key)) && met(source, program) == 1 {
        let by = format!("&, {}", replacement(&added));
        return finding.mend(sed(&met_by("type", program), &by, &place));
    }
    let means = format!("{} Write {added} for {program}.", finding.means);
    finding.means(means).mend(format!("vi {}", quoted(&place)))
}

/// How often the type of `program` is met in the file by [`met_by`].
fn met(source: Source<'_>, program: &str) -> usize {
    let types = source.network.text.split("\"type\":").skip(1);
    let program = json(program);
    let of_program = types.filter(|it| it.trim_start_matches(' ').starts_with(&program));
    of_program.count()
}

/// The first of each line that `pattern` meets is replaced.
fn sed(pattern: &str, replacement: &str, place: &str) -> String {
    let script = format!("s|{pattern}|{replacement}|");
    format!("sed -i {} {}", quoted(&script), quoted(place))
}

/// The pattern of a key with this text for its value.
fn met_by(key: &str, value: &str) -> String {
    format!("{}: *{}", pattern(&json(key)), pattern(&json(value)))
}

/// By which sed meets `text` and nothing else.
fn pattern(text: &str) -> String {
    escaped(text, r"\|.*[]^$")
}

/// By which sed writes `text` and nothing else.
fn replacement(text: &str) -> String {
    escaped(text, r"\|&")
}

fn escaped(text: &str, special: &str) -> String {
    let escape = |c: char| special.contains(c).then_some('\\');
    text.chars()
        .flat_map(|c| escape(c).into_iter().chain([c]))
        .collect()
}

/// As a file has it.
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
        let finding = Finding::problem("capability", "").means("It is told nothing.");
        give(finding, (&node, source), ("a", &json!("x|y & z")))
    }

    #[test]
    fn key_is_written_by_sed_where_it_meets_one_plugin() {
        let finding = given(r#"{"type": "portmap"}, {"type": "bandwidth"}"#);
        assert_eq!(
            finding.mend,
            r#"sed -i 's|"type": *"portmap"|&, "a": "x\|y \& z"|' /etc/cni/net.d/pods.conflist"#
        );
        assert_eq!(finding.means, "It is told nothing.");
    }

    #[test]
    fn key_is_written_by_people_where_sed_would_meet_more() {
        for plugins in [
            r#"{"type": "portmap"}, {"type": "portmap"}"#,
            r#"{"type": "portmap", "A": null}"#,
            r#"{"type" : "portmap"}"#,
        ] {
            let finding = given(plugins);
            assert_eq!(finding.mend, "vi /etc/cni/net.d/pods.conflist", "{plugins}");
            let means = r#"It is told nothing. Write "a": "x|y & z" for portmap."#;
            assert_eq!(finding.means, means);
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
