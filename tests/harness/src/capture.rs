//! Captures. In: an interface. Out: a pcap file that tshark reads.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::netns::NetNs;
use crate::process::{Background, run_ok};

/// A tcpdump that listens.
#[derive(Debug)]
pub struct Capture {
    tcpdump: Background,
    file: PathBuf,
}

impl Capture {
    /// Starts to capture and returns when tcpdump listens. `snap`: bytes of each packet, 0 for all.
    ///
    /// # Errors
    /// When tcpdump cannot be started or does not listen.
    pub fn start(netns: &NetNs, interface: &str, folder: &Path, filter: &str, snap: u32) -> Result<Self> {
        let file = folder.join(format!("{}-{interface}.pcap", netns.name()));
        let mut child = netns
            .command("tcpdump")
            .args(["-n", "-U", "--immediate-mode", "-B", "65536", "-Z", "root", "-i", interface])
            .args(["-s", &snap.to_string(), "-w"])
            .arg(&file)
            .arg(filter)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("starting tcpdump")?;
        let stderr = child.stderr.take().context("tcpdump has no stderr")?;
        let tcpdump = Background::new(child);
        let mut lines = BufReader::new(stderr).lines();
        loop {
            match lines.next() {
                Some(Ok(line)) if line.contains("listening on") => break,
                Some(Ok(_)) => {}
                _ => bail!("tcpdump does not listen on {interface}"),
            }
        }
        // What it says later must not fill the pipe.
        std::thread::spawn(move || for _ in lines {});
        Ok(Self { tcpdump, file })
    }

    /// Stops when the last packets have been written; returns the file.
    pub fn stop(mut self) -> PathBuf {
        std::thread::sleep(Duration::from_millis(300));
        self.tcpdump.interrupt();
        self.file.clone()
    }

    /// Fields of the packets that pass a display filter, a row each. VXLAN is expected on `port` as well.
    ///
    /// # Errors
    /// When tshark cannot read the file.
    pub fn fields(file: &Path, port: u16, filter: &str, fields: &[&str]) -> Result<Vec<Vec<String>>> {
        let file = file.to_string_lossy().into_owned();
        let decode = format!("udp.port=={port},vxlan");
        let mut words = vec!["tshark", "-n", "-r", &file, "-d", &decode, "-T", "fields", "-E", "separator=|"];
        // tshark takes checksums on trust unless told otherwise.
        for option in ["ip.check_checksum:TRUE", "tcp.check_checksum:TRUE", "udp.check_checksum:TRUE"] {
            words.extend(["-o", option]);
        }
        if !filter.is_empty() {
            words.extend(["-Y", filter]);
        }
        for field in fields {
            words.extend(["-e", field]);
        }
        Ok(run_ok(&words)?.lines().map(|line| line.split('|').map(str::to_owned).collect()).collect())
    }

    /// Number of packets that pass a display filter.
    ///
    /// # Errors
    /// When tshark cannot read the file.
    pub fn count(file: &Path, port: u16, filter: &str) -> Result<usize> {
        Ok(Self::fields(file, port, filter, &["frame.number"])?.len())
    }
}
