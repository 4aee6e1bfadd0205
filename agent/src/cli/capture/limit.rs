//! How much is captured. In: packets in their order. Out: whether each is within the limits.

/// Bytes as a user writes them.
pub fn bytes(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.char_indices().find(|(_, c)| !c.is_ascii_digit()) {
        Some((at, _)) => text.split_at(at),
        None => (text, ""),
    };
    let unit = match unit {
        "" => Some(1),
        "k" => Some(1000),
        "M" => Some(1_000_000),
        "G" => Some(1_000_000_000),
        _ => None,
    };
    let number = digits.parse::<u64>().ok().zip(unit).and_then(|(number, unit)| number.checked_mul(unit));
    number
        .filter(|number| *number > 0)
        .ok_or_else(|| "allowed: 1 or more, with k, M or G for powers of 1000".into())
}

/// What is left.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limit {
    count: Option<u64>,
    bytes: Option<u64>,
    full: bool,
}

impl Limit {
    /// So many packets, and bytes of them.
    pub fn new(count: Option<u64>, bytes: Option<u64>) -> Self {
        Self { count, bytes, full: false }
    }

    /// Whether nothing more is taken.
    pub fn is_reached(&self) -> bool {
        self.full
    }

    /// Takes a packet of so many bytes, or says that it is too much: then all later ones are.
    pub fn take(&mut self, len: u64) -> bool {
        if self.full || self.bytes.is_some_and(|left| len > left) {
            self.full = true;
            return false;
        }
        self.bytes = self.bytes.map(|left| left - len);
        self.count = self.count.map(|left| left - 1);
        self.full = self.count == Some(0) || self.bytes == Some(0);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::{Limit, bytes};

    #[test]
    fn bytes_have_units() {
        assert_eq!(
            [bytes("1"), bytes("20k"), bytes("3M"), bytes("2G")].map(Result::unwrap),
            [1, 20_000, 3_000_000, 2_000_000_000]
        );
        for wrong in ["", "0", "k", "1K", "1kB", "-1", "99999999999999999999", "99999999999999G"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_last_packet_that_fits_is_the_last() {
        let mut limit = Limit::new(Some(2), None);
        assert!(limit.take(100) && !limit.is_reached() && limit.take(100));
        assert!(limit.is_reached() && !limit.take(1));
        let mut limit = Limit::new(None, Some(250));
        assert!(limit.take(100) && limit.take(100) && !limit.take(100));
        assert!(limit.is_reached() && !limit.take(10), "no later one slips in");
        let mut limit = Limit::new(None, None);
        assert!((0..1000).all(|len| limit.take(len)));
    }
}
