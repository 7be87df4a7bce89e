//! Encodes and decodes the comments of elements and rules, as nft(8) shows them.

/// Encodes a comment for the user data of an element or rule, as nft(8) does: type, length, text
/// and a zero byte. The type is 0 in elements (`NFTNL_UDATA_SET_ELEM_COMMENT`) and in rules
/// (`NFTNL_UDATA_RULE_COMMENT`).
pub(crate) fn comment(text: &str) -> Vec<u8> {
    let len = u8::try_from(text.len() + 1).unwrap_or(u8::MAX);
    let (text, _) = text.as_bytes().split_at(usize::from(len) - 1);
    [&[COMMENT, len][..], text, &[0]].concat()
}

/// Returns the comment in the user data of an element or rule; `None` if the data contain no
/// complete comment.
pub(crate) fn comment_of(mut data: &[u8]) -> Option<String> {
    while let [kind, len, rest @ ..] = data {
        let (value, next) = rest.split_at_checked((*len).into())?;
        if *kind == COMMENT {
            let text = value.strip_suffix(&[0]).unwrap_or(value);
            return Some(String::from_utf8_lossy(text).into_owned());
        }
        data = next;
    }
    None
}

const COMMENT: u8 = 0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comment_is_read_back_among_others() {
        for text in ["", "cni:pods/c1/eth0", &"x".repeat(200)] {
            assert_eq!(comment_of(&comment(text)).as_deref(), Some(text));
        }
        let after_another = [vec![7, 2, 1, 2], comment("x")].concat();
        assert_eq!(comment_of(&after_another).as_deref(), Some("x"));
        for torn in [&[][..], &[0], &[0, 5, b'x'], &[7, 1, 1]] {
            assert_eq!(comment_of(torn), None);
        }
    }
}
