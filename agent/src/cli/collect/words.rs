//! Words of the command line that clap does not know.

use std::time::Duration;

use podwire_datapath::collect::PLACES;
use podwire_datapath::object::{DEVICE_NAME, is_device_name};

/// A time, as 50ms or 10s.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(time) if !time.is_zero() => Ok(time),
        _ => Err(format!("\"{text}\" is not a time above zero, as 50ms, 10s or 5m")),
    }
}

/// A number of bytes, as 500k, 100M or 2G; units are powers of 1000.
pub(super) fn bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("\"{text}\" is not a number of bytes above zero, as 500k, 100M or 2G");
    let (number, unit) = match text.find(|letter: char| !letter.is_ascii_digit()) {
        Some(at) => text.split_at(at),
        None => (text, ""),
    };
    let unit: u64 = match unit {
        "" => 1,
        "k" | "K" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        _ => return Err(wrong()),
    };
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    bytes.filter(|bytes| *bytes != 0).ok_or_else(wrong)
}

/// A device's name.
pub(super) fn device(text: &str) -> Result<String, String> {
    if is_device_name(text) { Ok(text.to_owned()) } else { Err(format!("not {DEVICE_NAME}")) }
}

/// An identifier of VXLAN or GENEVE.
pub(super) fn vni(text: &str) -> Result<u32, String> {
    whole(text, (1 << 24) - 1)
}

/// A key of GRE.
pub(super) fn key(text: &str) -> Result<u32, String> {
    whole(text, u32::MAX)
}

/// A session of ERSPAN.
pub(super) fn session(text: &str) -> Result<u16, String> {
    whole(text, 1023).map(|session| session as u16)
}

fn whole(text: &str, most: u32) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| *number <= most);
    number.ok_or_else(|| format!("not a whole number from 0 to {most}"))
}

/// How many talkers are shown.
pub(super) fn top(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|top| *top <= PLACES).ok_or_else(|| format!("allowed: 0 to {PLACES}"))
}

#[cfg(test)]
mod tests {
    use super::{bytes, device, session, time, top, vni};

    #[test]
    fn words_are_read() {
        assert_eq!([bytes("7"), bytes("500k"), bytes("2G")], [Ok(7), Ok(500_000), Ok(2_000_000_000)]);
        for wrong in ["", "0", "k", "1 k", "1T", "-1", "99999999999G"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
        assert!(time("0s").is_err() && time("1").is_err() && time("50ms").is_ok());
        assert!(top("64").is_ok() && top("65").is_err());
        assert_eq!((vni("16777215"), session("1023")), (Ok(16_777_215), Ok(1023)));
        for wrong in ["0x10", "16777216", "-1", ""] {
            assert_eq!(vni(wrong), Err("not a whole number from 0 to 16777215".into()), "{wrong}");
        }
        assert!(session("1024").is_err());
        assert!(device("eth0").is_ok() && device("").is_err() && device("a/b").is_err());
    }
}
