//! What is printed for people, or as JSON for programs.

use std::io::{self, Write};

use serde::Serialize;

/// Something that has both forms; the one for programs is what it serializes to.
pub trait Listing: Serialize {
    /// Writes it for people; styles are taken out where no terminal is.
    ///
    /// # Errors
    /// Those of `to`.
    fn text(&self, to: &mut impl Write) -> io::Result<()>;
}

/// `text` without what a terminal obeys: processes and pods choose their names.
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
