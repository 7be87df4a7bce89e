//! Text for terminals.

/// Returns `text` without control characters. Processes and pods choose their own names, and
/// control characters in a name could change the operator's terminal.
pub fn printable(text: &str) -> String {
    let visible = |c: char| if c.is_control() { '?' } else { c };
    text.chars().map(visible).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_moves_the_cursor() {
        assert_eq!(printable("a\u{1b}[2Jb\n"), "a?[2Jb?");
    }
}
