//! Quantities as Kubernetes writes them: `300k`, `1.5G`, `64Mi`, `5e8`. In: a field. Out: a whole number, rounded up.

use std::ops::RangeInclusive;

use super::decode::Field;

/// What stands behind a number, and what it is multiplied by.
const SUFFIXES: [(&str, u128); 13] = [
    ("", 1),
    ("k", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
    ("P", 1_000_000_000_000_000),
    ("E", 1_000_000_000_000_000_000),
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("Pi", 1 << 50),
    ("Ei", 1 << 60),
];

/// Exponents beyond are out of every range.
const MAX_EXPONENT: u32 = 18;

/// Digits that are read; more are out of every range, or of no use.
const MAX_DIGITS: usize = 18;

/// Reads a quantity; `range` is what `allowed` says in words.
pub(super) fn read(field: &Field, range: RangeInclusive<u64>, allowed: &str) -> Option<u64> {
    let text = field.text()?;
    let Some(value) = parse(text) else {
        let meant = meant(text).map_or_else(String::new, |meant| format!("; did you mean \"{meant}\"?"));
        field.refuse(&format!("\"{text}\" is not a quantity{meant}"), Some(allowed));
        return None;
    };
    let value = u64::try_from(value).ok().filter(|value| range.contains(value));
    if value.is_none() {
        field.refuse(&format!("{text} is out of range"), Some(allowed));
    }
    value
}

fn parse(text: &str) -> Option<u128> {
    let (number, suffix) = split(text);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = format!("{whole}{fraction}");
    let numeric = digits.bytes().all(|byte| byte.is_ascii_digit());
    if digits.is_empty() || digits.len() > MAX_DIGITS || !numeric {
        return None;
    }
    let digits: u128 = digits.parse().ok()?;
    let (factor, divisor) = match SUFFIXES.iter().find(|(known, _)| *known == suffix) {
        Some((_, factor)) => (*factor, 1),
        None => exponent(suffix)?,
    };
    let divisor = divisor * 10u128.pow(fraction.len() as u32);
    Some((digits * factor).div_ceil(divisor))
}

/// `e5` multiplies by 100,000, `e-5` divides by it.
fn exponent(suffix: &str) -> Option<(u128, u128)> {
    let digits = suffix.strip_prefix(['e', 'E'])?;
    let (down, digits) = match digits.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, digits.strip_prefix('+').unwrap_or(digits)),
    };
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let power = 10u128.pow(plain.then(|| digits.parse().ok()).flatten().filter(|it| *it <= MAX_EXPONENT)?);
    Some(if down { (1, power) } else { (power, 1) })
}

/// `800K`, `100Mbit`, `2g`: the number is right, what stands behind it nearly.
fn meant(text: &str) -> Option<String> {
    let (number, suffix) = split(text);
    let first = suffix.chars().next()?;
    let near = ["k", "M", "G", "T"].into_iter().find(|known| known.starts_with(first)).or_else(|| {
        ["k", "M", "G", "T"].into_iter().find(|known| known.eq_ignore_ascii_case(&first.to_string()))
    })?;
    let meant = format!("{number}{near}");
    parse(&meant).map(|_| meant)
}

fn split(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::{meant, parse};

    #[test]
    fn quantities_are_those_of_kubernetes() {
        for (text, value) in [
            ("0", 0),
            ("1000", 1000),
            ("300k", 300_000),
            ("800M", 800_000_000),
            ("2G", 2_000_000_000),
            ("1.5G", 1_500_000_000),
            (".5k", 500),
            ("5.", 5),
            ("1.0001k", 1001),
            ("1Ki", 1024),
            ("0.5Mi", 524_288),
            ("5e8", 500_000_000),
            ("5E+2", 500),
            ("5001e-3", 6),
            ("1E", 1_000_000_000_000_000_000),
        ] {
            assert_eq!(parse(text), Some(value), "{text}");
        }
        for text in [
            "", "k", ".", "-1", "+1", "1K", "1m", "1 k", "1kk", "1.2.3", "1e", "1e+", "1e99", "0x10", "1e1.5",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
        assert_eq!(parse(&"9".repeat(19)), None);
    }

    #[test]
    fn what_was_meant_is_said() {
        for (text, expected) in [("800K", "800k"), ("100Mbit", "100M"), ("2g", "2G"), ("10m", "10M")] {
            assert_eq!(meant(text).as_deref(), Some(expected), "{text}");
        }
        assert_eq!(meant("fast"), None);
    }
}
