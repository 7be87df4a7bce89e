//! Commands that messages print for the operator's shell.

use std::path::Path;

use crate::Attachment;

/// Returns `word` quoted for a shell.
pub fn quoted(word: &(impl ToString + ?Sized)) -> String {
    let word = word.to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_.-/:=,+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word;
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Returns the command that detaches the sandbox at the path `netns`.
pub fn del_command(attachment: &Attachment, netns: &Path) -> String {
    format!(
        "cnitool del {} {} --ifname {}",
        quoted(&attachment.network),
        quoted(&netns.display()),
        quoted(&attachment.interface)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_where_a_shell_would_see_more() {
        assert_eq!(quoted("eth0"), "eth0");
        assert_eq!(quoted("$(x)"), "'$(x)'");
        assert_eq!(quoted("a'b"), r"'a'\''b'");
    }
}
