//! What `--help` and man pages take from a page for operators: paragraphs and tables of keys.

use std::fmt::Write as _;

/// A part of a page, without Markdown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// A paragraph.
    Text(String),
    /// The head of a table of keys, such as `Keys of gc`.
    Head(String),
    /// A row of such a table.
    Key {
        /// The key, or keys with the same meaning.
        name: String,
        /// Type, if the table has types, and default.
        form: String,
        /// What the key does.
        meaning: String,
    },
}

/// Returns the text before the first section of a page, in paragraphs.
pub fn introduction(page: &str) -> Vec<Part> {
    let text = page.split("\n## ").next().unwrap_or_default();
    let paragraphs = text.split("\n\n").skip(1);
    let paragraphs = paragraphs.map(|it| Part::Text(plain(&it.trim().replace('\n', " "))));
    paragraphs.collect()
}

/// Returns the tables of a section of a page whose first column has keys.
pub fn keys(page: &str, section: &str) -> Vec<Part> {
    let head = format!("\n## {section}\n");
    let text = page.split_once(&head).map_or("", |(_, rest)| rest);
    let lines = text.lines().take_while(|line| !line.starts_with("## "));
    let (mut parts, mut columns) = (Vec::new(), Vec::new());
    for line in lines {
        let cells = line.strip_prefix("| ").map(cells).unwrap_or_default();
        match cells.as_slice() {
            [] if !line.starts_with("|-") => columns.clear(),
            [first, ..] if columns.is_empty() && first.starts_with("key") => {
                parts.push(Part::Head(first.replacen("key", "Keys", 1)));
                columns = cells;
            }
            [name, ..] if !columns.is_empty() => parts.push(Part::Key {
                name: name.clone(),
                form: form(&columns, &cells),
                meaning: cell(&columns, &cells, "meaning").to_owned(),
            }),
            _ => (),
        }
    }
    parts
}

/// Returns type and default of a key.
fn form(columns: &[String], cells: &[String]) -> String {
    let kind = cell(columns, cells, "type");
    match (kind, cell(columns, cells, "default")) {
        ("", default) => default.to_owned(),
        (kind, "none") => kind.to_owned(),
        (kind, "required") => format!("{kind}, required"),
        (kind, default) => format!("{kind}; default {default}"),
    }
}

/// Returns the cell of a row in the column with this head.
fn cell<'c>(columns: &[String], cells: &'c [String], head: &str) -> &'c str {
    let place = columns.iter().position(|it| it == head);
    place
        .and_then(|it| cells.get(it))
        .map_or("", String::as_str)
}

fn cells(row: &str) -> Vec<String> {
    let row = row.trim_end().trim_end_matches('|');
    row.split(" | ").map(|it| plain(it.trim())).collect()
}

/// Removes the marks of code and bold text, and the targets of links.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, target)) = rest.split_once("](") {
        let (before, linked) = before.rsplit_once('[').unwrap_or((before, ""));
        plain.push_str(before);
        plain.push_str(linked);
        rest = target.split_once(')').map_or("", |(_, after)| after);
    }
    plain.push_str(rest);
    plain.replace("**", "").replace('`', "")
}

/// Writes the parts for a terminal with 80 columns.
pub fn text(parts: &[Part]) -> String {
    let mut text = String::new();
    for part in parts {
        // Writing to a string cannot fail.
        let _ = match part {
            Part::Text(words) => writeln!(text, "{}\n", wrapped(words, "")),
            Part::Head(head) => writeln!(text, "{head}:"),
            Part::Key {
                name,
                form,
                meaning,
            } => writeln!(text, "  {name} ({form})\n{}", wrapped(meaning, "      ")),
        };
    }
    text
}

/// Breaks `words` into lines of at most 80 columns that begin with `indent`. A word that is longer
/// than a line has a line of its own.
pub fn wrapped(words: &str, indent: &str) -> String {
    let (mut text, mut width) = (String::new(), 0);
    for word in words.split_whitespace() {
        let length = word.chars().count();
        if width == 0 || width + 1 + length > WIDTH {
            text.push_str(if width == 0 { "" } else { "\n" });
            text.push_str(indent);
            width = indent.len();
        } else {
            text.push(' ');
            width += 1;
        }
        text.push_str(word);
        width += length;
    }
    text
}

const WIDTH: usize = 80;

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# bridge

Joins a [sandbox](../x.md) to a `bridge`,
by a pair.

## When to use it

## Configuration reference

Text.

| key | type | default | meaning | bad input gets |
|---|---|---|---|---|
| `a[].b`, `c` | list of [names](#n) | none | what **both** do | error 7 |
| `d` | string | required | more | |

| other | table |
|---|---|
| `e` | no key |

## Files

| key | meaning |
|---|---|
| `f` | elsewhere |
";

    #[test]
    fn a_page_becomes_text() {
        let mut parts = introduction(PAGE);
        parts.extend(keys(PAGE, "Configuration reference"));
        let expected = "Joins a sandbox to a bridge, by a pair.

Keys:
  a[].b, c (list of names)
      what both do
  d (string, required)
      more
";
        assert_eq!(text(&parts), expected);
    }
}
