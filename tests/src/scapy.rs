//! Frames in scapy's words. In: names with their values, and expressions. Out: bytes.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

const PRELUDE: &str = "from scapy.all import *\nconf.verb = 0\n";

/// The bytes of each expression. Values are texts; `prelude` is more Python that expressions may use.
///
/// # Errors
/// When scapy does not understand one.
pub fn frames(names: &[(&str, &str)], prelude: &str, expressions: &[String]) -> Result<Vec<Vec<u8>>> {
    let mut script = PRELUDE.to_owned();
    for (name, value) in names {
        script += &format!("{name} = {value:?}\n");
    }
    script += prelude;
    for expression in expressions {
        script += &format!("\nprint(raw({expression}).hex())");
    }
    // Debian's interpreter: another one first in the path would not have scapy.
    let output = Command::new("/usr/bin/python3").args(["-c", &script]).stdin(Stdio::null()).output()?;
    ensure!(output.status.success(), "scapy: {}", String::from_utf8_lossy(&output.stderr));
    let frames = String::from_utf8(output.stdout)?.lines().map(bytes).collect::<Result<Vec<_>>>()?;
    ensure!(frames.len() == expressions.len(), "{} frames of {}", frames.len(), expressions.len());
    Ok(frames)
}

fn bytes(hex: &str) -> Result<Vec<u8>> {
    let digits = |at: usize| hex.get(at..at + 2).context("an odd number of digits");
    (0..hex.len()).step_by(2).map(|at| Ok(u8::from_str_radix(digits(at)?, 16)?)).collect()
}
