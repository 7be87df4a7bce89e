//! Parses Kubernetes quantities: `10M`, `1.5Gi`, `1e6`.
//!
//! Source: k8s.io/apimachinery, `pkg/api/resource/quantity.go`.

/// Returns the value of the quantity `text`, rounded up to a whole number. Returns `None` if `text`
/// is not a quantity, is negative, or is too large.
pub fn parse(text: &str) -> Option<u64> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text.find(|it: char| !it.is_ascii_digit() && it != '.');
    let (number, suffix) = text.split_at(end.unwrap_or(text.len()));
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || number.len() > MOST_DIGITS {
        return None;
    }
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    let (multiplier, exponent) = scale(suffix)?;
    let exponent = exponent.checked_sub(i32::try_from(fraction.len()).ok()?)?;
    let power = 10_u128.checked_pow(exponent.unsigned_abs())?;
    let digits = digits.checked_mul(multiplier)?;
    let value = match exponent {
        0.. => digits.checked_mul(power)?,
        _ => digits.div_ceil(power),
    };
    u64::try_from(value).ok()
}

/// Returns what a suffix stands for: a multiplier, and the exponent of a power of ten. `Ki` gives
/// 1024 and 0, `e6` gives 1 and 6. Returns `None` for an unknown suffix.
fn scale(suffix: &str) -> Option<(u128, i32)> {
    let decimal = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
    let binary = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    if let Some(step) = decimal.iter().position(|it| *it == suffix) {
        let exponent = i32::try_from(step).ok()? * 3 - 9;
        return Some((1, exponent));
    }
    if let Some(step) = binary.iter().position(|it| *it == suffix) {
        return Some((1 << (10 * step), 0));
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?;
    Some((1, exponent.parse().ok()?))
}

/// Maximum length of the number before the suffix, with its decimal point. The value has at most 20
/// digits (`u64`), so there is room for a fraction.
const MOST_DIGITS: usize = 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read() {
        for (text, value) in [
            ("1k", 1000),
            ("1M", 1_000_000),
            ("10Mi", 10 << 20),
            ("1e6", 1_000_000),
            ("1E6", 1_000_000),
            ("1E+6", 1_000_000),
            ("15e-1", 2),
            ("1E", 1_000_000_000_000_000_000),
            ("500k", 500_000),
            ("1.5G", 1_500_000_000),
            (".5Ki", 512),
            ("5.", 5),
            ("0", 0),
            ("1P", 1_000_000_000_000_000),
            ("2500m", 3),
            ("1n", 1),
            ("123", 123),
            ("+10M", 10_000_000),
        ] {
            assert_eq!(parse(text), Some(value), "{text}");
        }
    }

    #[test]
    fn what_is_no_quantity_is_refused() {
        for text in [
            "",
            ".",
            "M",
            "-1",
            "+",
            "++1",
            "+-1",
            "1 M",
            "1K",
            "1mi",
            "1MB",
            "1.2.3",
            "1e",
            "1e1.5",
            "10 ",
            "20E",
            "1e99",
            "1e-2147483648",
            "0x10",
            "ten",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
